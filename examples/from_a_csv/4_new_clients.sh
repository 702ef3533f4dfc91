#!/bin/sh
# A clinic joins: first test whether its data look like the training data, then adapt a model to it.
set -eu
python "$(dirname "$0")/make_visits.py"

fedscape train visits.csv --client clinic --column outcome --model linear --fill mean --standardise --lr 0.3 \
    --method fedgmm --out model
fedscape novelty model visits.csv new_visits.csv   # clinic 99 measures in other units: nearly all its rows are new
fedscape adapt model new_visits.csv --out adapted
fedscape predict adapted new_visits.csv --out predictions.csv
