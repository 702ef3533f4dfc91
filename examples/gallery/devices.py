# %% [markdown]
# # Devices: who is there when
#
# **When are devices available, and does a model of them foretell others?** A twin is fitted to the sessions of 200
# devices and drawn anew.

# %%
import matplotlib.pyplot as plt
import numpy as np

import fedscape as fs
from fedscape import Key

DAY = 86400.0
rng = np.random.default_rng(0)
night_owls = rng.random(200) < 0.4
hours = np.where(night_owls[:, None], 23, 13) + rng.normal(0, 2.5, (200, 14))
start = np.sort(np.arange(14) * DAY + (hours % 24) * 3600, axis=1)
length = np.minimum(rng.lognormal(7.5, 0.7, start.shape), np.diff(start, axis=1, append=15 * DAY) - 60)
device = np.repeat(np.arange(200), 14)
log = fs.twin.sessions(device, start.ravel(), (start + np.maximum(length, 60)).ravel(), window=(0, 15 * DAY))
twin = fs.twin.fit(log, n_kinds=2, rounds=25)
drawn = twin.sample(200, Key(1)).sessions(0.0, 15 * DAY)

# %% [markdown]
# Arrivals by hour of the day, in the log and drawn from the twin.

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for name, sessions, colour in (("log", log, "#0072B2"), ("twin", drawn, "#D55E00")):
    rows = sessions["watch"] == 0
    axes.hist(sessions["start"][rows] / 3600 % 24, bins=24, range=(0, 24), histtype="step", label=name, color=colour)
axes.set(xlabel="hour of the day", ylabel="sessions that begin")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
figure
