"""The one table of training methods. Commands, studies and explanations read it; it imports no torch.

A new method is one entry here: its name and title, one sentence on what it does, and how it is built. The entry also
says what the server sees of single clients, and what noise on sums would not cover.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedscape.core.computation import Computation
from fedscape.errors import DataError
from fedscape.methods import makers, tabular
from fedscape.methods.makers import a_class
from fedscape.methods.method import Columns, Method, Options

if TYPE_CHECKING:
    from fedscape.learning.local import LocalSGD

_MODES = ("log_share", "mean", "variance", "rows")
_SEEN = "the server sees {} client by client, which noise on sums does not cover"
_ALL = (
    Method(
        name="fedavg", title="FedAvg", takes=("server_lr",), make=a_class("learning.fedavg:FedAvg", makers.plain),
        sentence="Clients train from the common weights; the server moves by the mean of their moves.",
    ),
    Method(
        name="fedprox", title="FedProx", takes=("server_lr", "proximal"),
        make=a_class("learning.fedavg:FedAvg", makers.plain),
        sentence="FedAvg whose clients are held near the common weights while they train.",
    ),
    Method(
        name="fedadam", title="FedAdam", takes=("server_lr",),
        make=a_class("learning.fedavg:FedAvg", lambda how: makers.plain(how, rule="Adam")),
        sentence="FedAvg whose server rule is Adam; its moments stay on the server.",
    ),
    Method(
        name="qfedavg", title="q-FedAvg", takes=("server_lr", "q"), make=a_class("learning.fair:QFedAvg", makers.fair),
        sentence="FedAvg in which clients with a high loss weigh more: they also send how much they weigh.",
    ),
    Method(
        name="fednova", title="FedNova", takes=("server_lr", "proximal"),
        make=a_class("learning.fednova:FedNova", makers.plain),
        exact="its numbers of steps share one clip with the moves, which are lost in the noise",
        sentence="FedAvg of moves per effective step: clients that make more local steps weigh no more.",
    ),
    Method(
        name="fedyogi", title="FedYogi", takes=("server_lr",),
        make=a_class("learning.fedavg:FedAvg", lambda how: makers.plain(how, rule="Yogi")),
        sentence="FedAvg whose server moves by Yogi: as Adam, with a second moment that forgets slowly.",
    ),
    Method(
        name="fedadagrad", title="FedAdagrad", takes=("server_lr",),
        make=a_class("learning.fedavg:FedAvg", lambda how: makers.plain(how, rule="Adagrad")),
        sentence="FedAvg whose server moves by Adagrad: each step is divided by the root of all squares so far.",
    ),
    Method(
        name="scaffold", title="SCAFFOLD", takes=("server_lr",),
        make=a_class("learning.scaffold:Scaffold", makers.drifting),
        sentence="FedAvg whose clients take the drift out of their steps by control variates, which they keep.",
    ),
    Method(
        name="local", title="Local (alone)", family="personal", takes=("proximal",),
        make=a_class("personal.own_models:LocalOnly", makers.drawn),
        exact="no model is shared: each client keeps its own, and noise on a sum covers none of it",
        sentence="Every client trains alone; the server learns how many rows there are and nothing else.",
    ),
    Method(
        name="fedavg+", title="FedAvg+ (fine-tuned)", family="personal", takes=("server_lr", "proximal"), tunes=True,
        make=a_class("personal.methods:Common", makers.drawn_plain),
        sentence="FedAvg, and then every client trains the common model once more on its own rows and keeps it.",
    ),
    Method(
        name="clustered", title="Clustered FL", family="personal", takes=("proximal",), reveals=("update",),
        make=a_class("personal.clustered:ClusteredFL", makers.drawn), exact=_SEEN.format("projected updates"),
        sentence="FedAvg that splits into clusters by the cosines of clients' updates (Sattler et al.).",
    ),
    Method(
        name="ifca", title="Clustered (IFCA)", family="personal", takes=("proximal",),
        make=a_class("personal.fedem:IFCA", makers.drawn),
        sentence="Several models; each client picks the one with the lowest loss on its rows and trains that.",
    ),
    Method(
        name="pfedme", title="pFedMe", family="personal", takes=("server_lr",),
        make=a_class("personal.own_models:PFedMe", makers.drawn_plain),
        sentence="Each client keeps a model near the common one, which follows the clients' models.",
    ),
    Method(
        name="fedem", title="FedEM", family="personal", takes=("proximal",),
        make=a_class("personal.fedem:FedEM", makers.drawn),
        sentence="Several models for all; each client keeps its own mixing weights of them, found by EM.",
    ),
    Method(
        name="fedgmm", title="FedGMM", family="personal", takes=("proximal",), make=makers.fedgmm,
        exact="its Gaussians are first fitted to exact sums of features, which the budget of its rounds does not cover",
        sentence="Gaussians over features and models over labels, shared; each client keeps its own weights of the "
        "pairs.",
    ),
    Method(
        name="ditto", title="Ditto", family="personal", takes=("server_lr", "proximal"),
        make=a_class("personal.own_models:Ditto", makers.drawn_plain),
        sentence="FedAvg, beside which every client trains a model of its own that is held near the common one.",
    ),
    Method(
        name="fedrep", title="FedRep", family="personal", takes=("proximal",),
        make=a_class("personal.fedrep:FedRep", makers.drawn),
        sentence="Common layers that all train, and a last layer of its own for every client.",
    ),
    Method(
        name="fedper", title="FedPer", family="personal", takes=("proximal",),
        make=a_class("personal.fedper:FedPer", makers.drawn),
        sentence="Common layers and a last layer of each client's own, trained at once.",
    ),
    Method(
        name="fedbn", title="FedBN", family="personal", takes=("proximal",), command=False,
        make=a_class("personal.fedbn:FedBN", makers.drawn),
        sentence="All but the normalisation layers is common; for models made by hand that have some.",
    ),
    Method(
        name="fedbabu", title="FedBABU", family="personal", takes=("proximal",),
        make=a_class("personal.fedbabu:FedBABU", makers.drawn),
        sentence="The body is trained together under a last layer that nobody trains; then each client tunes both.",
    ),
    Method(
        name="fedala", title="FedALA", family="personal", takes=("server_lr", "proximal"),
        make=a_class("personal.fedala:FedALA", makers.drawn_plain),
        sentence="FedAvg whose clients learn how much of the common last layer they take over before they train.",
    ),
    Method(
        name="feddbe", title="FedDBE", family="personal", takes=("proximal",),
        make=a_class("personal.feddbe:FedDBE", makers.drawn),
        sentence="A shift of the features that each client keeps, and features drawn to a common mean.",
    ),
    Method(
        name="pfedfda", title="pFedFDA", family="personal", takes=("proximal",),
        make=a_class("personal.pfedfda:PFedFDA", makers.drawn),
        sentence="Features are Gaussian given the class; each client mixes its own law of them with the common one.",
    ),
    Method(
        name="gpfl", title="GPFL", family="personal", takes=("proximal",),
        make=a_class("personal.gpfl:GPFL", makers.drawn),
        sentence="Features in two forms, one guided by common vectors of the classes, one for a head of each client's.",
    ),
    Method(
        name="profiles", title="Profiles (groups)", family="personal", takes=("proximal",), command=False,
        make=makers.profiled,
        exact="its groups are first found by exact sums of clients' profiles: fit Profiles with privacy= and train "
        "ProfiledFL",
        sentence="Clients are grouped by moments of their rows and labels; each group trains a model of its own.",
    ),
    Method(
        name="fedclock", title="FedClock", family="temporal", takes=("server_lr", "prior"),
        make=a_class("temporal.fedclock:FedClock", makers.clocked, branches=True),
        sentence="A branch for each mode, the modes learned by regressing clients' labels on the hour's shares, from "
        "sums.",
    ),
    Method(
        name="fedtem", title="FedTEM", family="temporal", takes=("server_lr", "prior"), reveals=_MODES,
        make=a_class("temporal.fedtem:FedTEM", makers.scattered, branches=True),
        exact=_SEEN.format("shares and features"),
        sentence="A branch for each mode of day and night; clients choose theirs by EM with a prior over time.",
    ),
    Method(
        name="fedtem-sums", title="FedTEM by sums", family="temporal", takes=("server_lr", "prior"),
        make=a_class("temporal.fedtem:FedTEMBySums", makers.timed, branches=True),
        sentence="The same with the modes' features learned from sums.",
    ),
    Method(
        name="fedtkm", title="FedTKM", family="temporal", takes=("server_lr", "prior"),
        make=a_class("temporal.fedtkm:FedTKM", makers.timed, branches=True),
        sentence="A branch for each mode; clients choose theirs by k-means with the hour's shares, from sums.",
    ),
    Method(
        name="em-only", title="EM only", family="temporal", takes=("server_lr",), reveals=_MODES,
        make=a_class("temporal.fedtem:FedTEM", makers.unguided, branches=True),
        exact=_SEEN.format("shares and features"), sentence="FedTEM without a prior over time.",
    ),
    Method(
        name="vanilla", title="Vanilla", family="temporal", takes=("server_lr",), make=makers.vanilla,
        sentence="FedAvg of a network whose branches are averaged.",
    ),
    Method(
        name="single", title="Single branch", family="temporal", takes=("server_lr",), command=False,
        make=makers.single,
        sentence="FedAvg of the network with one branch: the method fedavg on a schedule.",
    ),
    Method(
        name="scsgd", title="Semi-cyclic SGD", family="temporal", takes=("server_lr", "prior"),
        make=a_class("temporal.baselines:SemiCyclic", makers.halved, branches=True),
        sentence="A branch for each half of the day, trained in its hours.",
    ),
    Method(
        name="t-shot", title="T-shot k-means", family="temporal", takes=("server_lr",), reveals=("centres", "rows"),
        make=makers.t_shot, exact=_SEEN.format("centres of rows"),
        sentence="A branch for each mode; clients first send the centres of their rows, which the server clusters.",
    ),
    Method(
        name="ifca-branches", title="IFCA on branches", family="temporal", takes=("server_lr",),
        make=a_class("temporal.baselines:MinLoss", makers.smooth, branches=True),
        sentence="A branch for each mode; clients train the one with the lowest loss on their rows.",
    ),
    Method(
        name="fedem-branches", title="FedEM on branches", family="temporal", takes=("server_lr",), command=False,
        make=a_class("temporal.baselines:BranchFedEM", makers.on_a_day, branches=True),
        sentence="Branches for all; each client keeps its own weights of them, and needs labels to be tested.",
    ),
    Method(
        name="trees", title="Boosted trees", family="tabular", takes=("trees", "law", "ranges"), make=tabular.trees,
        sentence="Boosted trees of a table: clients sum gradients by node and bin, and the server picks the splits.",
    ),
    Method(
        name="glm", title="GLM", family="tabular", takes=("law", "l2", "ranges"), make=tabular.glm,
        sentence="A generalised linear model of a table, by reweighted least squares: its normal equations are sums.",
    ),
)  # fmt: skip

#: All training methods by name, the simplest first.
METHODS: dict[str, Method] = {method.name: method for method in _ALL}


def names(family: str | None = None, *, command: bool | None = None) -> tuple[str, ...]:
    """Names of methods: all, those of a family, or (with command=True) those that `fedscape train` offers.

    >>> names("global")[:3]
    ('fedavg', 'fedprox', 'fedadam')
    """
    kept = [m for m in METHODS.values() if family in (None, m.family) and command in (None, m.command)]
    return tuple(m.name for m in kept)


def find(name: str, *, command: bool | None = None) -> Method:
    """Look a method up by name; refuse an unknown name and list the known ones.

    >>> find("fedprox").takes
    ('server_lr', 'proximal')
    """
    if name not in names(command=command):
        raise DataError(f"method must be one of {', '.join(names(command=command))}, not {name!r}")
    return METHODS[name]


def make(name: str, local: LocalSGD | Columns, options: Options | None = None) -> Any:
    """Build the computation of a method for `rounds` and `training`; refuse an option that it does not take.

    Parameters
    ----------
    name
        A name of METHODS.
    local
        How a client trains; methods on a schedule make branches of its model unless it is a MultiBranch. Methods of
        the family "tabular" read its columns alone, and take `Columns`, too.
    options
        Other options of the method.

    >>> from fedscape.learning import LocalSGD, cross_entropy, models
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> make("fedadam", step, Options(server_lr=0.01)).server.lr
    0.01
    """
    how, method = options or Options(), find(name)
    check_options(method, how, proximal=getattr(local, "proximal", 0.0))
    return method.make(local, how)


def check_options(method: Method, options: Options | None = None, *, proximal: float = 0.0) -> None:
    """Refuse an option that the method does not take, and a missing one that it needs.

    >>> check_options(METHODS["fedprox"], proximal=0.1)
    """
    if method.name == "fedprox" and proximal == 0:
        raise DataError("fedprox needs proximal above 0, such as 0.1: with 0 it is fedavg")
    how, plain = options or Options(), Options()
    changed = [option for option in _CHECKED if getattr(how, option) != getattr(plain, option)]
    for option in [*(["proximal"] if proximal else []), *changed]:
        if option not in method.takes:
            others = [n for n in names(command=True) if option in METHODS[n].takes]
            raise DataError(f"{option} goes with {', '.join(others)}, not with {method.name}")


#: Options that are refused by methods that do not take them.
_CHECKED = ("q", "server_lr", "trees", "law", "l2")


def line_of(computation: Computation) -> Method | None:
    """The line of the table that builds computations of this class; None where none does.

    >>> from fedscape.learning import FedNova, LocalSGD, cross_entropy, models
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> line_of(FedNova(step)).name
    'fednova'
    """
    kind = type(computation)
    path = f"{kind.__module__.removeprefix('fedscape.')}:{kind.__name__}"
    return next((method for method in METHODS.values() if path in getattr(method.make, "paths", ())), None)


def check_private(method: Method | Computation) -> None:
    """Refuse private training for a method that noise on its sums does not cover.

    >>> check_private(METHODS["fedavg"])
    """
    line = method if isinstance(method, Method) else line_of(method)
    if getattr(method, "noised_before", False):  # what it found before its rounds is in a ledger
        return
    name = type(method).__name__ if line is None else line.name
    why = line.exact if line is not None else _SEEN.format(", ".join(method.reveals)) if method.reveals else ""
    if why:
        raise DataError(f"{name} cannot be private: {why}; leave out --epsilon or use another method")
