"""Loops over the entities of many agents, each a serial Numba kernel beside its plain NumPy twin.

An entity is represented by the sums of its events: the lower triangle of X'X (row by row), X'y, y'y and n, one row of
P + F + 2 numbers with P = F (F + 1) / 2.
"""

from __future__ import annotations

import numpy as np

from fedscape.core.kernel import kernel
from fedscape.types import Array


def triangle(f: int) -> int:
    """The number of entries in the lower triangle of an f x f matrix."""
    return f * (f + 1) // 2


def width(f: int) -> int:
    """The number of sums per entity."""
    return triangle(f) + f + 2


def unpacked(rows: Array, f: int) -> Array:
    """Lower triangles [..., P] as symmetric matrices [..., f, f]."""
    low = np.tril_indices(f)
    full = np.zeros((*rows.shape[:-1], f, f))
    full[..., low[0], low[1]] = rows
    full[..., low[1], low[0]] = rows
    return full


def packed(matrices: Array) -> Array:
    """The lower triangles of symmetric matrices [..., f, f]: [..., P]."""
    low = np.tril_indices(matrices.shape[-1])
    return np.asarray(matrices[..., low[0], low[1]])


@kernel
def add_events(x: Array, y: Array, order: Array, starts: Array, centre: Array, scale: Array, out: Array) -> None:
    """Sum each entity's events, with features and target centred and features divided by their scale.

    `order` sorts the rows by entity, `starts` marks where each begins; `out` is [entities, P + F + 2], where F is one
    more than the features with an intercept.
    """
    f = x.shape[1]
    n = int((np.sqrt(8.0 * out.shape[1] - 7.0) - 3.0) / 2.0 + 0.5)  # solves P + F + 2 for F
    p = n * (n + 1) // 2
    row = np.ones(n)
    for e in range(len(starts) - 1):
        for place in range(starts[e], starts[e + 1]):
            r = order[place]
            for j in range(f):
                row[j] = (x[r, j] - centre[j]) / scale[j]
            t = y[r] - centre[f]
            q = 0
            for i in range(n):
                v = row[i]
                for j in range(i + 1):
                    out[e, q + j] += v * row[j]
                q += i + 1
                out[e, p + i] += v * t
            out[e, p + n] += t * t
            out[e, p + n + 1] += 1.0


def add_events_twin(x: Array, y: Array, order: Array, starts: Array, centre: Array, scale: Array, out: Array) -> None:
    """The plain NumPy twin of `add_events`."""
    f = x.shape[1]
    with_intercept = width(f) != out.shape[1]
    for e in range(len(starts) - 1):
        rows = order[starts[e] : starts[e + 1]]
        z = (x[rows] - centre[:f]) / scale[:f]
        if with_intercept:
            z = np.column_stack([z, np.ones(len(rows))])
        t = y[rows] - centre[f]
        out[e] += np.concatenate([packed(z.T @ z), z.T @ t, [t @ t, len(rows)]])


@kernel
def add_log_densities(
    sums: Array, own: Array, precision: Array, mean: Array, pivot: Array, weight: float, floor: Array, out: Array
) -> None:
    """Add log p(y_ij | class k) of every entity and class, the block form of Theorem 1, to `out` [entities, K].

    Let D be the precision of class k's coefficients, m their mean and r = y - X m the residuals. With
    D' = D + X'X / sigma^2 and b = X'r / sigma^2,
    log p = -n/2 log(2 pi sigma^2) - log(|D'| / |D|) / 2 - (r'r / sigma^2 - b' D'^-1 b) / 2. For
    the class that already holds the entity's own events (`own`, -1 for none) the same holds with every sign but that of
    r'r flipped: D' = D - X'X / sigma^2 is then the precision without them. Residuals avoid large cancellations.

    `precision` is [K, P], `mean` and `pivot` (the inverse pivots of D's factorisation) [K, F], `weight` 1 / sigma^2;
    `floor` [F] is the prior's precision, a lower limit of every pivot.
    """
    f = mean.shape[1]
    p = f * (f + 1) // 2
    side = 64 if f < 16 else 16  # entities per SIMD batch, as many as fit the cache
    block = np.zeros((sums.shape[1], side))
    low, b, inverse = np.empty((p, side)), np.empty((f, side)), np.empty((f, side))
    sign, square, logs, ratio = np.ones(side), np.empty(side), np.empty(side), np.empty(side)
    for begin in range(0, len(sums), side):
        n = min(side, len(sums) - begin)
        for e in range(n):
            for j in range(sums.shape[1]):
                block[j, e] = sums[begin + e, j]
        for k in range(len(mean)):
            m, d = mean[k], precision[k]
            for e in range(n):
                sign[e] = -weight if own[begin + e] == k else weight
            for e in range(side):
                square[e] = block[p + f, e]
                logs[e] = 0.0
                ratio[e] = 1.0
            q = 0
            for i in range(f):  # b = X'y - X'X m
                bi, g, v, mi = b[i], block[p + i], block[q + i], m[i]
                for e in range(side):
                    bi[e] = g[e] - v[e] * mi
                for j in range(i):
                    bj, v, mj = b[j], block[q + j], m[j]
                    for e in range(side):
                        bi[e] -= v[e] * mj
                        bj[e] -= v[e] * mi
                q += i + 1
            for i in range(f):
                bi, g, mi = b[i], block[p + i], m[i]
                for e in range(side):
                    square[e] -= mi * (g[e] + bi[e])
                    bi[e] *= weight
            for e in range(side):
                square[e] = weight * max(square[e], 0.0)
            qi = 0
            for i in range(f):
                qj = 0
                for j in range(i + 1):
                    a, v, dij = low[qi + j], block[qi + j], d[qi + j]
                    for e in range(side):
                        a[e] = dij + sign[e] * v[e]
                    for t in range(0, j - 1, 2):
                        r, s, u, v = low[qi + t], low[qj + t], low[qi + t + 1], low[qj + t + 1]
                        for e in range(side):
                            a[e] -= r[e] * s[e] + u[e] * v[e]
                    if j % 2:
                        r, s = low[qi + j - 1], low[qj + j - 1]
                        for e in range(side):
                            a[e] -= r[e] * s[e]
                    if j < i:
                        r = inverse[j]
                        for e in range(side):
                            a[e] *= r[e]
                    qj += j + 1
                a, r, bi, least, old = low[qi + i], inverse[i], b[i], floor[i], pivot[k, i]
                for e in range(side):
                    a[e] = max(a[e], least)
                    ratio[e] *= a[e] * old
                    r[e] = 1.0 / np.sqrt(a[e])
                for t in range(i):
                    a, bj = low[qi + t], b[t]
                    for e in range(side):
                        bi[e] -= a[e] * bj[e]
                for e in range(side):
                    bi[e] *= r[e]
                    square[e] -= np.copysign(bi[e] * bi[e], sign[e])
                qi += i + 1
                if i % 4 == 3 or i == f - 1:  # before a product of pivots can overflow
                    for e in range(n):
                        logs[e] += np.log(ratio[e])
                        ratio[e] = 1.0
            for e in range(n):
                turned = logs[e] if sign[e] > 0 else -logs[e]
                constant = block[p + f + 1, e] * np.log(weight / (2.0 * np.pi))
                out[begin + e, k] += 0.5 * (constant - turned - square[e])


def log_densities_twin(sums: Array, own: Array, second: Array, first: Array, prior: Array, sigma: float) -> Array:
    """The plain NumPy twin of `add_log_densities`, from the classes' sums X'X [K, F, F] and X'y [K, F]: [entities, K].

    Reads like the digest's block form: the class's sums without the entity's own, then with them.
    """
    f, out = first.shape[1], np.empty((len(sums), len(first)))
    p = triangle(f)
    for e, row in enumerate(sums):
        g2, g1, s, n = unpacked(row[:p], f), row[p : p + f], row[p + f], row[p + f + 1]
        for k in range(len(first)):
            mine = 1.0 if own[e] == k else 0.0
            d = np.diag(prior) + (second[k] - mine * g2) / sigma**2
            c = (first[k] - mine * g1) / sigma**2
            d_new, c_new = d + g2 / sigma**2, c + g1 / sigma**2
            logdet = np.linalg.slogdet(d)[1] - np.linalg.slogdet(d_new)[1]
            quadratic = s / sigma**2 + c @ np.linalg.solve(d, c) - c_new @ np.linalg.solve(d_new, c_new)
            out[e, k] = -n / 2 * np.log(2 * np.pi * sigma**2) + logdet / 2 - quadratic / 2
    return out


@kernel
def draw_labels(
    log_density: Array,
    offsets: Array,
    old: Array,
    counts: Array,
    held: float,
    alpha: float,
    beta: float,
    uniform: Array,
    labels: Array,
    shares: Array,
) -> None:
    """Draw a label for each entity in turn, agent by agent: eq. (2) times the density, in logarithms.

    An agent uses its own labels: those drawn already in this pass, and the old ones of the others (-1 for none).
    `counts` [K] are those of all agents; `held` marks whether an entity's old label is among them. `shares` receives
    the probabilities of the draw.
    """
    k_all = len(counts)
    total = 0.0
    for k in range(k_all):
        total += counts[k]
    mine = np.zeros(k_all)
    for i in range(len(offsets) - 1):
        mine[:] = 0.0
        for e in range(offsets[i], offsets[i + 1]):
            if old[e] >= 0:
                mine[old[e]] += 1.0
        for e in range(offsets[i], offsets[i + 1]):
            was = old[e]
            if was >= 0:
                mine[was] -= 1.0
            removed = held if was >= 0 else 0.0
            high = -np.inf
            for k in range(k_all):
                everywhere = max(counts[k] - (removed if k == was else 0.0), 0.0)
                prior = mine[k] + beta * (everywhere + alpha / k_all) / (max(total - removed, 0.0) + alpha)
                shares[e, k] = log_density[e, k] + np.log(prior)
                high = max(high, shares[e, k])
            mass = 0.0
            for k in range(k_all):
                shares[e, k] = np.exp(shares[e, k] - high)
                mass += shares[e, k]
            left = uniform[e] * mass
            label = -1
            for k in range(k_all):
                left -= shares[e, k]
                if left < 0.0 and label < 0:
                    label = k
                shares[e, k] /= mass
            if label < 0:  # rounding at the end of the unit interval
                label = int(np.argmax(shares[e]))
            labels[e] = label
            mine[label] += 1.0


@kernel
def add_by_class(sums: Array, offsets: Array, shares: Array, out: Array) -> None:
    """Sum each agent's entities by class, weighted by shares: out [agents, K, P + F + 3], entities last."""
    for i in range(len(offsets) - 1):
        for e in range(offsets[i], offsets[i + 1]):
            for k in range(shares.shape[1]):
                v = shares[e, k]
                if v != 0.0:
                    for j in range(sums.shape[1]):
                        out[i, k, j] += v * sums[e, j]
                    out[i, k, sums.shape[1]] += v


def add_by_class_twin(sums: Array, offsets: Array, shares: Array, out: Array) -> None:
    """The plain NumPy twin of `add_by_class`."""
    rows = np.column_stack([sums, np.ones(len(sums))])
    for i in range(len(offsets) - 1):
        mine = slice(offsets[i], offsets[i + 1])
        out[i] += shares[mine].T @ rows[mine]


@kernel
def settle_shares(
    log_density: Array,
    offsets: Array,
    old: Array,
    counts: Array,
    held: float,
    alpha: float,
    beta: float,
    passes: int,
    shares: Array,
) -> None:
    """The probabilities of each entity's class, without a draw: eq. (1) with expected instead of drawn labels.

    Shares start at the old labels, or at all classes' counts and the density if there is none. Each pass updates them
    entity by entity, given the expected labels of the agent's other entities.
    """
    k_all = len(counts)
    total = counts.sum()
    mine = np.zeros(k_all)
    for i in range(len(offsets) - 1):
        mine[:] = 0.0
        for e in range(offsets[i], offsets[i + 1]):
            shares[e, :] = 0.0
            if old[e] >= 0:
                shares[e, old[e]] = 1.0
                mine[old[e]] += 1.0
        for _ in range(passes):
            for e in range(offsets[i], offsets[i + 1]):
                was = old[e]
                removed = held if was >= 0 else 0.0
                high = -np.inf
                for k in range(k_all):
                    mine[k] = max(mine[k] - shares[e, k], 0.0)
                    everywhere = max(counts[k] - (removed if k == was else 0.0), 0.0)
                    prior = mine[k] + beta * (everywhere + alpha / k_all) / (max(total - removed, 0.0) + alpha)
                    shares[e, k] = log_density[e, k] + np.log(prior)
                    high = max(high, shares[e, k])
                mass = 0.0
                for k in range(k_all):
                    shares[e, k] = np.exp(shares[e, k] - high)
                    mass += shares[e, k]
                for k in range(k_all):
                    shares[e, k] /= mass
                    mine[k] += shares[e, k]


@kernel
def sweep_labels(
    sums: Array,
    offsets: Array,
    labels: Array,
    total: Array,
    precision: Array,
    mean: Array,
    pivot: Array,
    noise: float,
    floor: Array,
    psi: Array,
    alpha: float,
    beta: float,
    uniform: Array,
) -> None:
    """One sweep of collapsed Gibbs sampling (Algorithm 2): draws every label in turn and updates the classes.

    `total` [K, P + F + 3] are the classes' sums; `precision` [K, P], `mean` and `pivot` (inverse) [K, F] follow from
    them. `psi` [K] is the agents' common law of labels; if its first number is negative, eq. (2) is used instead.
    """
    k_all, f = mean.shape
    p = f * (f + 1) // 2
    weight = 1.0 / noise
    low, b, score, mine = np.empty(p), np.empty(f), np.empty(k_all), np.zeros(k_all)
    for i in range(len(offsets) - 1):
        mine[:] = 0.0
        for e in range(offsets[i], offsets[i + 1]):
            mine[labels[e]] += 1.0
        for e in range(offsets[i], offsets[i + 1]):
            was, row = labels[e], sums[e]
            mine[was] -= 1.0
            high = -np.inf
            for k in range(k_all):  # the density as in add_log_densities, one entity and class at a time
                m, d = mean[k], precision[k]
                sign = -1.0 if k == was else 1.0
                square, logs = row[p + f], 0.0
                q = 0
                for r in range(f):
                    b[r] = row[p + r] - row[q + r] * m[r]
                    for j in range(r):
                        b[r] -= row[q + j] * m[j]
                        b[j] -= row[q + j] * m[r]
                    q += r + 1
                for r in range(f):
                    square -= m[r] * (row[p + r] + b[r])
                square = weight * max(square, 0.0)
                qi = 0
                for r in range(f):
                    qj = 0
                    for j in range(r + 1):
                        a = d[qi + j] + sign * weight * row[qi + j]
                        for t in range(j):
                            a -= low[qi + t] * low[qj + t]
                        if j < r:
                            low[qi + j] = a / low[qj + j]
                        else:
                            a = max(a, floor[r])
                            logs += np.log(a * pivot[k, r])
                            low[qi + j] = np.sqrt(a)
                        qj += j + 1
                    u = weight * b[r]
                    for t in range(r):
                        u -= low[qi + t] * b[t]
                    b[r] = u / low[qi + r]
                    square -= sign * b[r] * b[r]
                    qi += r + 1
                share = psi[k]
                if psi[0] < 0.0:
                    share = (total[k, -1] - (1.0 if k == was else 0.0) + alpha / k_all) / (len(sums) - 1 + alpha)
                score[k] = np.log(mine[k] + beta * share) - 0.5 * (sign * logs + square)
                high = max(high, score[k])
            mass = 0.0
            for k in range(k_all):
                score[k] = np.exp(score[k] - high)
                mass += score[k]
            left = uniform[e] * mass
            now = -1
            for k in range(k_all):
                left -= score[k]
                if left < 0.0 and now < 0:
                    now = k
            if now < 0:
                now = int(np.argmax(score))
            mine[now] += 1.0
            labels[e] = now
            if now == was:
                continue
            for k in (was, now):
                step = -1.0 if k == was else 1.0
                for j in range(p + f + 2):
                    total[k, j] += step * row[j]
                total[k, p + f + 2] += step
                q = 0
                for r in range(f):  # factorise the changed class, and solve for its mean
                    qj = 0
                    for j in range(r + 1):
                        a = weight * total[k, q + j]
                        if j == r:
                            a += floor[r]
                        precision[k, q + j] = a
                        for t in range(j):
                            a -= low[q + t] * low[qj + t]
                        if j < r:
                            low[q + j] = a / low[qj + j]
                        else:
                            a = max(a, floor[r])
                            pivot[k, r] = 1.0 / a
                            low[q + j] = np.sqrt(a)
                        qj += j + 1
                    u = weight * total[k, p + r]
                    for t in range(r):
                        u -= low[q + t] * b[t]
                    b[r] = u / low[q + r]
                    q += r + 1
                for back in range(f):
                    r = f - 1 - back
                    u = b[r]
                    for t in range(r + 1, f):
                        u -= low[t * (t + 1) // 2 + r] * mean[k, t]
                    mean[k, r] = u / low[r * (r + 1) // 2 + r]


@kernel
def count_tables(labels: Array, offsets: Array, psi: Array, beta: float, uniform: Array, tables: Array) -> None:
    """Count the labels of each class drawn from psi and not from the agent's own labels, and add them to `tables`.

    The n-th label k of an agent is, with probability beta psi_k / (beta psi_k + n - 1) (Antoniak).
    """
    mine = np.zeros(len(psi))
    for i in range(len(offsets) - 1):
        mine[:] = 0.0
        for e in range(offsets[i], offsets[i + 1]):
            k = labels[e]
            fresh = beta * psi[k]
            if uniform[e] * (fresh + mine[k]) < fresh:
                tables[k] += 1.0
            mine[k] += 1.0
