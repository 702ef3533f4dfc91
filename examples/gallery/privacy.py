# %% [markdown]
# # What privacy costs, and whether it holds
#
# **How much noise does a budget need, and does an attack find less privacy than is claimed?** The ledger books what
# is spent. The audit attacks the real path and compares.

# %%
import matplotlib.pyplot as plt
import numpy as np

import fedscape as fs
from fedscape.report.plots import plot_audit

rates = np.array([0.001, 0.01, 0.1, 1.0])

# %% [markdown]
# Noise that 100 rounds need for a budget, by the rate at which clients take part. Fewer clients a round need less
# noise each.

# %%
figure, axes = plt.subplots(figsize=(5.6, 3), layout="constrained")
for epsilon, colour in zip((1, 4), ("#0072B2", "#D55E00"), strict=True):
    noise = [fs.calibrate(epsilon, 1e-6, rounds=100, sampler=fs.Poisson(float(rate))) for rate in rates]
    axes.plot(rates, noise, marker="o", color=colour, label=f"epsilon {epsilon}")
axes.set(xlabel="rate of clients in a round", ylabel="noise, in multiples of the clip", xscale="log", yscale="log")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
figure

# %% [markdown]
# An attack on a private histogram: the scores of runs with and without one client, and the epsilon they prove beside
# the claim.

# %%
writers = fs.datasets.load("femnist-mini")
audit = fs.privacy.audit(fs.Histogram(62), writers, fs.Gaussian(clip=50.0, multiplier=2.0), repeats=200)
figure, rows = plot_audit(audit.about())
figure
