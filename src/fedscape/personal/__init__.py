"""A model of its own for every client: FedGMM and the field's personalised methods, new clients, novelty."""

from __future__ import annotations

from fedscape.personal.alone import Ditto, LocalOnly, PFedMe
from fedscape.personal.fedem import IFCA, FedEM
from fedscape.personal.fedgmm import FedGMM

__all__ = ["IFCA", "Ditto", "FedEM", "FedGMM", "LocalOnly", "PFedMe"]
