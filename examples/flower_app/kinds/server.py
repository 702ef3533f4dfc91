"""The server: fits the mixture to the sums that nodes send, and writes the population."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import fedscape as fs

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    how = context.run_config
    engine = fs.Flower(grid, nodes=int(how["nodes"]), min_clients=10)
    mixture = fs.MixtureOfDirichletMultinomials(
        int(how["kinds"]), n_init=1, rounds=int(how["rounds"]), column="y", n_categories=62, seed=0
    )
    mixture.fit(engine, progress=False)
    mixture.save(str(how["out"]))
    print("shares of the kinds:", mixture.weights_.round(3).tolist())
