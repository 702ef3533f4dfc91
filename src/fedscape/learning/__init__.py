"""Train a whole cohort at once, with the same numbers on every path, and every client's result on record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.learning import models
    from fedscape.learning.adapters import Adapted
    from fedscape.learning.evaluation import ClientAccuracy, Evaluation, evaluate
    from fedscape.learning.export import load_model, module_of, save_model
    from fedscape.learning.fair import QFedAvg
    from fedscape.learning.fedavg import FedAdagrad, FedAdam, FedAvg, FedProx, FedYogi
    from fedscape.learning.fednova import FedNova
    from fedscape.learning.halving import Trial, sweep
    from fedscape.learning.layers import initialised
    from fedscape.learning.local import LocalSGD
    from fedscape.learning.losses import cross_entropy, logistic, squared_error
    from fedscape.learning.run import model_for, standardising, training, with_features
    from fedscape.learning.scaffold import Scaffold
    from fedscape.learning.schedules import CosineDecay, StepDecay
    from fedscape.learning.server import Adagrad, Adam, Mean, Momentum, Rule, Yogi
    from fedscape.learning.strategies import measure_strategies
    from fedscape.learning.sweeps import Setting, Sweep, grid
    from fedscape.learning.tracking import Board, MLflow, Sink, WandB, ask_and_sweep, follow

__all__ = [
    "Adagrad",
    "Adam",
    "Adapted",
    "Board",
    "ClientAccuracy",
    "CosineDecay",
    "Evaluation",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedNova",
    "FedProx",
    "FedYogi",
    "LocalSGD",
    "MLflow",
    "Mean",
    "Momentum",
    "QFedAvg",
    "Rule",
    "Scaffold",
    "Setting",
    "Sink",
    "StepDecay",
    "Sweep",
    "Trial",
    "WandB",
    "Yogi",
    "ask_and_sweep",
    "cross_entropy",
    "evaluate",
    "follow",
    "grid",
    "initialised",
    "load_model",
    "logistic",
    "measure_strategies",
    "model_for",
    "models",
    "module_of",
    "save_model",
    "squared_error",
    "standardising",
    "sweep",
    "training",
    "with_features",
]

__getattr__ = loader(
    __name__,
    {
        "adapters": ["Adapted"],
        "evaluation": ["ClientAccuracy", "Evaluation", "evaluate"],
        "export": ["load_model", "module_of", "save_model"],
        "fair": ["QFedAvg"],
        "fedavg": ["FedAdagrad", "FedAdam", "FedAvg", "FedProx", "FedYogi"],
        "fednova": ["FedNova"],
        "halving": ["Trial", "sweep"],
        "layers": ["initialised"],
        "local": ["LocalSGD"],
        "losses": ["cross_entropy", "logistic", "squared_error"],
        "models": [],
        "run": ["model_for", "standardising", "training", "with_features"],
        "scaffold": ["Scaffold"],
        "schedules": ["CosineDecay", "StepDecay"],
        "server": ["Adagrad", "Adam", "Mean", "Momentum", "Rule", "Yogi"],
        "strategies": ["measure_strategies"],
        "sweeps": ["Setting", "Sweep", "grid"],
        "tracking": ["Board", "MLflow", "Sink", "WandB", "ask_and_sweep", "follow"],
    },
)
