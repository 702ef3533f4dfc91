"""Personalised models, one per client: FedGMM and the field's other methods, new clients, novelty."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.personal.clustered import ClusteredFL
    from fedscape.personal.features import principal_directions, with_embedding, with_projection
    from fedscape.personal.fedala import FedALA
    from fedscape.personal.fedbabu import FedBABU
    from fedscape.personal.fedbn import FedBN
    from fedscape.personal.feddbe import FedDBE
    from fedscape.personal.fedem import IFCA, FedEM
    from fedscape.personal.fedgmm import FedGMM
    from fedscape.personal.fedper import FedPer
    from fedscape.personal.fedrep import FedRep
    from fedscape.personal.files import load_personal, save_personal
    from fedscape.personal.gpfl import GPFL
    from fedscape.personal.methods import make_fedgmm
    from fedscape.personal.novelty import Alarm, Novelty, auroc, average_precision, max_f1
    from fedscape.personal.own_models import Ditto, LocalOnly, PFedMe
    from fedscape.personal.personalised import Personalised
    from fedscape.personal.pfedfda import PFedFDA
    from fedscape.personal.profiles import ProfiledFL, Profiles

__all__ = [
    "GPFL",
    "IFCA",
    "Alarm",
    "ClusteredFL",
    "Ditto",
    "FedALA",
    "FedBABU",
    "FedBN",
    "FedDBE",
    "FedEM",
    "FedGMM",
    "FedPer",
    "FedRep",
    "LocalOnly",
    "Novelty",
    "PFedFDA",
    "PFedMe",
    "Personalised",
    "ProfiledFL",
    "Profiles",
    "auroc",
    "average_precision",
    "load_personal",
    "make_fedgmm",
    "max_f1",
    "principal_directions",
    "save_personal",
    "with_embedding",
    "with_projection",
]

__getattr__ = loader(
    __name__,
    {
        "clustered": ["ClusteredFL"],
        "features": ["principal_directions", "with_embedding", "with_projection"],
        "fedala": ["FedALA"],
        "fedbabu": ["FedBABU"],
        "fedbn": ["FedBN"],
        "feddbe": ["FedDBE"],
        "fedem": ["FedEM", "IFCA"],
        "fedgmm": ["FedGMM"],
        "fedper": ["FedPer"],
        "fedrep": ["FedRep"],
        "files": ["load_personal", "save_personal"],
        "gpfl": ["GPFL"],
        "methods": ["make_fedgmm"],
        "novelty": ["Alarm", "Novelty", "auroc", "average_precision", "max_f1"],
        "own_models": ["Ditto", "LocalOnly", "PFedMe"],
        "personalised": ["Personalised"],
        "pfedfda": ["PFedFDA"],
        "profiles": ["ProfiledFL", "Profiles"],
    },
)
