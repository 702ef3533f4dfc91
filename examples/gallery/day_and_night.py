# %% [markdown]
# # Day and night
#
# **What does it cost when digits are written by day and letters by night, and what mends it?** The mix of clients
# follows a curve. One network forgets by night what it learned by day; FedClock keeps a branch for each and reads
# from the clock whose turn it is.

# %%
import matplotlib.pyplot as plt
import numpy as np

import fedscape as fs
from fedscape.learning import cross_entropy, models
from fedscape.methods import Options, make
from fedscape.temporal import Cosine, MultiBranch, Shifting, by_mode, evaluate, read_clock

PERIOD, ROUNDS = 16, 64
writers = fs.datasets.load("femnist-mini")
ink = 1 - writers["x"].reshape(-1, 28, 28)[:, ::2, ::2].reshape(writers.n_rows, -1) / 255
fed, modes = by_mode(writers.with_column("x", ink.astype(np.float32)), (writers["y"] >= 10).astype(int))
train, test = fed.split(test=0.25, seed=0)
curve = Cosine(PERIOD, p=1)

# %% [markdown]
# The share of clients of the day in each round of two periods.

# %%
figure, axes = plt.subplots(figsize=(6.4, 2), layout="constrained")
axes.plot([curve.shares(t)[0] for t in range(2 * PERIOD)], color="#0072B2")
axes.set(xlabel="round", ylabel="share of the day")
axes.spines[["top", "right"]].set_visible(False)
figure

# %% [markdown]
# Accuracy on the held-out rows of all clients, round by round.

# %%
step = fs.LocalSGD(MultiBranch(models.mlp(196, 32, 62)), cross_entropy, lr=0.3, epochs=1, batch_size=20)
cohorts = Shifting(modes, curve, 10)
curves = {}
figure, axes = plt.subplots(figsize=(6.4, 3), layout="constrained")
for name, title, colour in (("vanilla", "FedAvg", "#D55E00"), ("fedclock", "FedClock", "#0072B2")):
    method, accuracy = make(name, step, Options(prior=curve)), {}
    for r in fs.rounds(method, train, n_rounds=ROUNDS, sampler=cohorts, seed=0):
        if r.index % 2 == 1:
            accuracy[r.index] = evaluate(method, r.state, test).summary()["accuracy_pooled"]
    curves[name] = np.array(list(accuracy.values()))
    axes.plot(list(accuracy), curves[name], marker=".", color=colour, label=title)
axes.set(xlabel="round", ylabel="accuracy, all clients")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
figure

# %% [markdown]
# Nobody needs to say how long a period is: it can be read from the curve of the plain method, here with a value every
# two rounds.

# %%
print(read_clock(curves["vanilla"]))
