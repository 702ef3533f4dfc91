# %% [markdown]
# # How different are clients?
#
# **Which clients resemble each other, and is it more than chance?** A sketch is a small array per client, made in one
# pass over its rows. Distances between sketches stand for distances between data.

# %%
import matplotlib.pyplot as plt
import numpy as np

import fedscape as fs

writers = fs.datasets.load("femnist-mini")
sketch = fs.DistributionSketch(rows=200, centre="mean", seed=0).fit(writers, column="x")
sketches = sketch.transform(writers)  # [clients, rows, cells]
measured = fs.sketches.heterogeneity(sketches, writers.sizes)
print(
    f"heterogeneity {measured.value:.3f} [{measured.low:.3f}, {measured.high:.3f}]; 0 would be interchangeable clients"
)

# %% [markdown]
# Pairwise distances, with the chance part taken off. Rows are sorted so that like clients are side by side.

# %%
n = len(sketches)
left, right = np.repeat(np.arange(n), n), np.tile(np.arange(n), n)
sizes = (writers.sizes[left], writers.sizes[right])
distance = fs.sketches.distance(sketches[left], sketches[right], sizes=sizes).reshape(n, n)
np.fill_diagonal(distance, 0)
order = np.argsort(np.linalg.svd(distance - distance.mean(axis=0))[0][:, 0])

figure, axes = plt.subplots(figsize=(5.2, 4.4), layout="constrained")
image = axes.imshow(distance[order][:, order], cmap="viridis")
axes.set(xlabel="client", ylabel="client", title="distance of clients' images")
figure.colorbar(image)
figure

# %% [markdown]
# The debiased mean distance beside the distance that clients of one law would show by chance.

# %%
figure, axes = plt.subplots(figsize=(6.4, 1.8), layout="constrained")
axes.barh(["interchangeable clients", "these clients"], [measured.iid, measured.distance], color=["grey", "#0072B2"])
axes.set_xlabel("mean distance of a client from the whole")
axes.spines[["top", "right"]].set_visible(False)
figure
