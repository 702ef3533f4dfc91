"""What is asked of a model after a private fit: nothing exact, nothing of an earlier fit, each release booked."""

from __future__ import annotations

import hashlib
from itertools import count

import pytest
from test_blind_fits import FITS, PRIVACY, RANGES, common_trees, people

from fedscape import GLM, CoxRegression, Gaussian, Ledger, PrivacyError
from fedscape.privacy.mechanisms import Privacy
from fedscape.tabular import TreeAttributions


@pytest.fixture(autouse=True)
def same_noise(monkeypatch):
    """Noise as in every run of this test: with some, a Cox regression has no event left and is refused."""
    numbers = count()
    monkeypatch.setattr(Privacy, "new_secret", lambda self: hashlib.sha256(str(next(numbers)).encode()).digest())


def logistic() -> GLM:
    return GLM("logistic", features=("x", "z"), target="event", ranges=RANGES, rounds=2)


def test_a_private_fit_keeps_nothing_of_an_exact_one():
    """Errors, deviance and number of rows of the exact fit were saved beside the private coefficients."""
    fresh, again = logistic().fit(people(0), privacy=PRIVACY), logistic().fit(people(0))
    assert hasattr(again, "deviance_")
    again.fit(people(0), privacy=PRIVACY)
    assert sorted(vars(again)) == sorted(vars(fresh))


@pytest.mark.parametrize("name", ["TreeAttributions", "Quantiles", "BoostedTrees", "CoxRegression on a grid"])
def test_no_attribute_outlives_a_fit(name):
    learned = []
    for first in (None, people(1)):
        model = FITS[name](people(0), {"privacy": PRIVACY})
        if first is not None:
            model.stale_ = "of an earlier fit"
            how = {"features": model.features, "target": model.target} if name == "BoostedTrees" else {}
            model.fit(people(0), privacy=PRIVACY, **how)
        learned.append(sorted(vars(model)))
    assert learned[0] == learned[1]


def test_attributions_by_kind_are_booked_with_the_fit():
    about = TreeAttributions(common_trees(loss="squared", target="z")).fit(people(0), privacy=PRIVACY)
    before = about.ledger_.spent()
    about.by_kind(people(0), "kind", privacy=PRIVACY)
    (group,) = before
    assert about.ledger_.spent()[group] > before[group] + 0.1
    with pytest.raises(PrivacyError, match="fitted privately, and attributions would be exact"):
        about.by_kind(people(0), "kind")
    with pytest.raises(PrivacyError, match="classes of 'region' follow from the rows"):
        about.by_kind(people(0), "region", privacy=PRIVACY)
    assert about.history_.private
    assert len(about.history_) == 1


def test_a_private_model_gives_no_exact_score_of_clients():
    precise = Gaussian(clip=50.0, multiplier=1e-3)
    cox = CoxRegression(times=[1, 3, 6], rounds=2).fit(people(0), privacy=precise)
    for ask in (cox.score, cox.concordance, cox.heterogeneity):
        with pytest.raises(PrivacyError, match="fitted privately, and"):
            ask(people(0))
    spent, own = sum(cox.ledger_.spent().values()), Ledger()
    noisy = cox.score(people(0), privacy=Gaussian(clip=8.0, multiplier=0.05))
    assert sum(cox.ledger_.spent().values()) > spent
    cox.score(people(0), privacy=precise, ledger=own)
    assert sum(own.spent().values()) > 0
    assert (len(cox.history_), cox.history_.private) == (2, True)
    assert 0.2 < noisy < 0.8
    glm = logistic().fit(people(0), privacy=PRIVACY)
    for ask in (glm.heterogeneity, lambda fed: glm.by_site(fed, "x.0", allow=("estimates", "variances"))):
        with pytest.raises(PrivacyError, match="fitted privately, and"):
            ask(people(0))
