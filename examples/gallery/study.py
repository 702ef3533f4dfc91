# %% [markdown]
# # One study in four figures
#
# **Which method should I train, and whom does it fail?** A study answers from the federation alone. Here: characters
# by 30 writers.

# %%

import fedscape as fs
from fedscape.report import plot_kinds, plot_map, plot_methods, plot_skew

writers = fs.datasets.load("femnist-mini")
study = fs.study(writers, column="y", rounds=3, seeds=1, seed=0)
print(study.result["advise"][0]["text"])

# %% [markdown]
# Each point is a client. Close points have like data. The colour is the kind that the mixture gives the client.

# %%
figure, rows = plot_map(study.result)
figure

# %% [markdown]
# How far clients differ beyond chance, in labels, features and sizes.

# %%
figure, rows = plot_skew(study.result)
figure

# %% [markdown]
# What a kind has more of, and less of, than all clients together.

# %%
figure, rows = plot_kinds(study.result, "A")
figure

# %% [markdown]
# Every method on held-out rows with its 95% interval, on the true clients and as simulated clients foresee it. Where
# intervals overlap, nothing is shown: the study then advises the simpler method.

# %%
figure, rows = plot_methods(study.result)
figure
