# %% [markdown]
# # What kinds of clients are there?
#
# **How many kinds are there, what do they have, and can I draw new clients like them?** A mixture of
# Dirichlet-multinomials is fitted to the label counts of 3,597 writers, by sums alone.

# %%
import matplotlib.pyplot as plt
import numpy as np

import fedscape as fs

counts = fs.datasets.load("femnist-labels")["y"]  # [clients, 62]
train, test = counts[::2], counts[1::2]
candidates = range(1, 5)
fits = [fs.MixtureOfDirichletMultinomials(k, seed=0).fit(train) for k in candidates]
scores = [fit.score(test) for fit in fits]
print(dict(zip(candidates, np.round(scores, 2), strict=True)))

# %% [markdown]
# Held-out log-likelihood of a client, by the number of kinds. One standard error is drawn; the step from one kind to
# two is large.

# %%
figure, axes = plt.subplots(figsize=(5.2, 3), layout="constrained")
errors = [fit.score_clients(test).std() / len(test) ** 0.5 for fit in fits]
axes.errorbar(candidates, scores, yerr=errors, marker="o", capsize=3, color="#0072B2")
axes.set(xlabel="kinds", ylabel="log-likelihood per client", xticks=list(candidates))
axes.spines[["top", "right"]].set_visible(False)
figure

# %% [markdown]
# What two kinds of writers write. One has mostly digits, and every letter about equally often. The other also has the
# letters of running English text.

# %%
mixture = fits[1]
means = mixture.concentrations_ / mixture.concentrations_.sum(axis=1, keepdims=True)
letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
figure, axes = plt.subplots(2, 1, figsize=(9, 3.6), sharex=True, layout="constrained")
for k, colour in enumerate(("#0072B2", "#D55E00")):
    axes[k].bar(range(62), means[k], color=colour, label=f"{mixture.weights_[k]:.0%} of writers")
    axes[k].set_xticks(range(62), list(letters), fontsize=7)
    axes[k].legend(frameon=False)
figure

# %% [markdown]
# New writers drawn from the mixture beside true ones that it has not seen.

# %%
drawn = mixture.sample(len(test), seed=1)
figure, axes = plt.subplots(figsize=(5.2, 3), layout="constrained")
for label, these, colour in (("true writers", test, "#0072B2"), ("drawn writers", drawn, "#D55E00")):
    digits = these[:, :10].sum(axis=1) / these.sum(axis=1)
    axes.hist(digits, bins=np.linspace(0, 1, 41), histtype="step", label=label, color=colour)
axes.set(xlabel="share of digits among a writer's characters", ylabel="writers", yscale="log")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
figure
