# %% [markdown]
# # Tables: coefficients of every site, and what trees look at
#
# **Do sites agree on an effect, and which columns matter for whom?** Flights of 14 carriers: how late do they arrive?
# Both models are fitted by sums over the carriers.

# %%
import matplotlib.pyplot as plt
import numpy as np

import fedscape as fs
from fedscape.report import plot_forest
from fedscape.tabular import TreeAttributions

flights = fs.datasets.load("flights-mini")
columns = ["dep_delay", "distance", "air_time"]
model = fs.GLM("gaussian", features=columns, target="arr_delay").fit(flights)
print(dict(zip(columns, model.coefficients_.round(3).ravel(), strict=False)))

# %% [markdown]
# The coefficient of departure delay at each carrier with its interval, and pooled over carriers that may differ. I2
# is the share of the spread that is not chance. The server sees each carrier's own fit here, so the call names what
# is revealed.

# %%
figure, rows = plot_forest(model.by_site(flights, "dep_delay", allow=["estimates", "variances"]))
figure

# %% [markdown]
# Boosted trees on the same columns. Exact Shapley values say how far a column moves a prediction on average, in
# minutes.

# %%
trees = fs.BoostedTrees(40, depth=4, loss="squared", features=columns, target="arr_delay").fit(flights)
about = TreeAttributions(trees).fit(flights)
values = about.explain(np.column_stack([flights[name] for name in columns]))
size = np.abs(values).reshape(len(values), len(columns), -1).mean(axis=(0, 2))
figure, axes = plt.subplots(figsize=(5.6, 2), layout="constrained")
axes.barh(columns, size, color="#0072B2")
axes.set_xlabel("mean effect on the predicted delay, minutes")
axes.spines[["top", "right"]].set_visible(False)
figure
