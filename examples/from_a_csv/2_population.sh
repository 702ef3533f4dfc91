#!/bin/sh
# Which kinds of clinics are there? Draw a hundred more like them, to plan with.
set -eu
python "$(dirname "$0")/make_visits.py"

fedscape fit visits.csv --client clinic --column outcome --components 1-3 --out population.json
fedscape sample population.json --clients 100 --out drawn.csv
head -n 4 drawn.csv
