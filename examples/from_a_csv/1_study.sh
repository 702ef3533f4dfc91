#!/bin/sh
# How do the clinics differ, which method serves them, and for whom does it fail?
set -eu
python "$(dirname "$0")/make_visits.py"

fedscape describe visits.csv --client clinic --column outcome
fedscape study visits.csv --client clinic --column outcome --rounds 5 --out study
# open study/report.html in a browser
