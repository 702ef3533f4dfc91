"""A model of its own for every client: FedGMM and the field's personalised methods, new clients, novelty."""

from __future__ import annotations

from fedscape.personal.alone import Ditto, LocalOnly, PFedMe
from fedscape.personal.clustered import ClusteredFL
from fedscape.personal.fedem import IFCA, FedEM
from fedscape.personal.fedgmm import FedGMM
from fedscape.personal.fedrep import FedRep
from fedscape.personal.methods import FINISH, METHODS, make_fedgmm, train
from fedscape.personal.personalised import Personalised

__all__ = [
    "FINISH",
    "IFCA",
    "METHODS",
    "ClusteredFL",
    "Ditto",
    "FedEM",
    "FedGMM",
    "FedRep",
    "LocalOnly",
    "PFedMe",
    "Personalised",
    "make_fedgmm",
    "train",
]
