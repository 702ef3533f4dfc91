# %% [markdown]
# # One model, or one for each?
#
# **Whom does the average hide?** Three methods are trained on the same writers. What counts is the accuracy of every
# client, not the mean.

# %%
import matplotlib.pyplot as plt
import numpy as np

import fedscape as fs
from fedscape.learning import cross_entropy, models
from fedscape.methods import train

writers = fs.datasets.load("femnist-mini")
writers = writers.with_column("x", (1 - writers["x"] / 255).astype(np.float32))
mine, held = writers.split(test=0.25, seed=0)
local = fs.LocalSGD(models.linear(784, 62), cross_entropy, lr=0.3, epochs=1, batch_size=10)
boards = {name: train(name, local, mine, n_rounds=10, seed=0).evaluate(held) for name in ("fedavg", "fedavg+", "local")}
print({name: round(board.summary()["accuracy_of_clients"], 3) for name, board in boards.items()})

# %% [markdown]
# The accuracy of every client under each method, sorted: after ten rounds, all with one learning rate. The left end
# is the worst tenth.

# %%
figure, axes = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
for (name, board), colour in zip(boards.items(), ("#0072B2", "#D55E00", "#009E73"), strict=True):
    axes.plot(np.sort(board.accuracy), marker=".", color=colour, label=name)
axes.set(xlabel="clients, from worst to best", ylabel="accuracy on held-out rows")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
figure
