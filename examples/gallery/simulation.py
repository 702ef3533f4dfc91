# %% [markdown]
# # Simulated clients beside true ones
#
# **Which recipe cuts clients that look like mine?** Server data are cut into clients by three recipes. `fidelity`
# compares each with the true clients.

# %%
import matplotlib.pyplot as plt
import numpy as np

import fedscape as fs

true = fs.datasets.load("femnist-mini")
mixture = fs.MixtureOfDirichletMultinomials(2, seed=0).fit(true)
recipes = {
    "mixture": fs.simulate.FromMixture(mixture),
    "Dirichlet 1": fs.simulate.Dirichlet(1.0, sizes=true.sizes),
    "IID": fs.simulate.FullyIID(true.sizes),
}
cut = {
    name: fs.simulate.clients(recipe, true, n_clients=30, column="y", policy="replace", seed=0)
    for name, recipe in recipes.items()
}

# %% [markdown]
# The share of each client's commonest label against its number of rows.

# %%
figure, axes = plt.subplots(1, 4, figsize=(10, 2.8), sharey=True, layout="constrained")
for panel, (name, fed) in zip(axes, {"true clients": true, **cut}.items(), strict=True):
    counts = fed.counts("y", n_categories=62)
    panel.scatter(fed.sizes, counts.max(axis=1) / np.maximum(fed.sizes, 1), s=14, color="#0072B2")
    panel.set(title=name, xlabel="rows")
axes[0].set_ylabel("share of the commonest label")
figure

# %% [markdown]
# The distance between true and simulated clients beside its value if both came from one law.

# %%
measured = {name: fs.simulate.fidelity(true, fed, column="y", draws=100).misfit for name, fed in cut.items()}
figure, axes = plt.subplots(figsize=(5.6, 2.2), layout="constrained")
axes.barh(list(measured), [m.value for m in measured.values()], color="#0072B2", label="misfit")
axes.plot([m.alike for m in measured.values()], list(measured), "k|", markersize=18, label="of one law")
axes.set_xlabel("misfit; smaller is better")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
figure
