#!/bin/sh
# Train for all clinics, predict a new file, and export the model for programs that do not use fedscape.
set -eu
python "$(dirname "$0")/make_visits.py"

fedscape train visits.csv --client clinic --column outcome --model linear --fill mean --standardise --lr 0.3 --out model
fedscape predict model new_visits.csv --probabilities --out predictions.csv
head -n 4 predictions.csv
fedscape export model model.json --to sklearn
fedscape export model model.pt2 --to torch

# a number instead of a class: how many days will they stay?
fedscape regress visits.csv --client clinic --column days --features 'age,blood pressure' --components 1 --out days.json
fedscape predict days.json new_visits.csv --client clinic --out days.csv
