"""Commands that use a saved model: predict, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedscape import datasets
from fedscape.cli.options import Client, Force, Json, Quiet, Source, free
from fedscape.cli.show import flat, pairs, short, show
from fedscape.cli.tables import predict_table
from fedscape.errors import DataError, require

ROW = "fedscape.row"  # same as in learning.inputs, which is slow to import
Saved = Annotated[
    Path, typer.Argument(help="The --out folder of 'train', a file of 'adapt --out', or the .json of 'regress --out'.")
]


def predict(
    model: Saved,
    source: Source,
    out: Annotated[
        Path | None, typer.Option(help="Where to write predictions, one line per row: .csv or .parquet.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write the probability of every class.")
    ] = False,
    client: Client = None,
    force: Force = False,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Predict each row of a table with a saved model: known clients with their own, new ones as the method says."""
    from fedscape.tabular.saved import is_table_model

    free(out, force)
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise DataError(f"--out must end in .csv or .parquet, not {out.name!r}")
    if is_table_model(model):
        read = lambda own: datasets.read(source, client=client or own, rows=ROW)  # noqa: E731
        rows, columns, about = predict_table(model, read, probabilities)
        columns = _in_order(rows, columns)
    elif model.suffix == ".json":
        if probabilities:
            raise DataError("--probabilities needs classes, and this is a regression")
        columns, about = _by_regression(model, source, client)
    else:
        columns, about = _by_network(model, source, client, probabilities)
    if out is not None:
        _write(columns, out)
        about["out"] = str(out)
    if not quiet:
        for remark in about["remarks"]:
            typer.echo(remark, err=True)
    show(about, json_, lambda counts: pairs("predictions", _shown(counts)))


def _by_network(model: Path, source: str, client: str | None, every: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    require("torch", extra="learn")
    import numpy as np

    from fedscape.trained.model import load_network

    saved = load_network(model)
    table = datasets.read(source, client=client or saved.inputs.client, rows=ROW)
    predicted = saved.predict(table)
    codes, names = predicted.codes, np.array([*predicted.classes, ""], dtype=object)
    answered = codes >= 0
    columns = {
        "prediction": [name if ok else None for name, ok in zip(names[codes], answered, strict=True)],
        "probability": np.where(answered, np.nan_to_num(predicted.probabilities).max(axis=1), np.nan),
    }
    if every:
        columns |= {f"p({name})": predicted.probabilities[:, i] for i, name in enumerate(predicted.classes)}
    about: dict[str, Any] = {"method": saved.method, "rows": table.n_rows, "clients": len(table)}
    remarks = predicted.applied.remarks()
    if predicted.known is not None:
        new = int((~predicted.known).sum())
        about |= {"known_clients": int(predicted.known.sum()), "new_clients": new}
        about["new_clients_get"] = saved.newcomers or "no prediction"
        if new and saved.newcomers is None:
            if new == len(table):
                raise DataError(
                    f"the model knows none of the {new:,} clients, and {saved.method} has no model for new ones: "
                    "run 'fedscape adapt' first"
                )
            remarks.append(
                f"{new:,} of {len(table):,} clients are new and get no prediction: {saved.method} has no model for "
                "them, 'fedscape adapt' fits one"
            )
        elif new:
            remarks.append(f"{new:,} of {len(table):,} clients are new and get {saved.newcomers}")
    about["rows_without_prediction"] = int((~answered).sum())
    judged = predicted.accuracy(saved.inputs.target)
    if judged is not None:
        about |= {"accuracy": judged[0], "labelled_rows": judged[1]}
    return _in_order(table, columns), {**about, "remarks": remarks}


def _by_regression(model: Path, source: str, client: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    from fedscape.mixtures.latent_class.baselines import predictions
    from fedscape.mixtures.latent_class.model import LatentClassRegression

    saved = LatentClassRegression.load(model)
    table = datasets.read(source, client=client, rows=ROW)
    columns, about = predictions(saved, table)
    return _in_order(table, columns), about


def _in_order(table: Any, columns: dict[str, Any]) -> dict[str, Any]:
    """Add the columns client and row, and sort by the order of the file."""
    import numpy as np

    order = np.argsort(table[ROW], kind="stable")
    full = {"client": table.ids[table.client_of_row], "row": table[ROW], **columns}
    return {name: [v[i] for i in order] if isinstance(v, list) else v[order] for name, v in full.items()}


def _write(columns: dict[str, Any], out: Path) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from fedscape.core.checkpoint import replace_file
    from fedscape.formats.cells import without_formulas

    def column(values: Any) -> Any:
        if isinstance(values, list):
            return pa.array(values, type=pa.string())
        gaps = np.isnan(values) if values.dtype.kind == "f" else None
        return pa.array(values, mask=gaps)

    table = pa.table({name: column(values) for name, values in columns.items()})
    if out.suffix == ".csv":
        replace_file(out, lambda file: pyarrow.csv.write_csv(without_formulas(table), file))
    else:
        replace_file(out, lambda file: pyarrow.parquet.write_table(table, file))


def _shown(about: dict[str, Any]) -> dict[str, Any]:
    return {name: short(value) for name, value in flat(about).items() if name != "remarks"}


def export(
    model: Annotated[Path, typer.Argument(help="The --out folder of 'fedscape train', or a file of 'adapt --out'.")],
    out: Annotated[Path, typer.Argument(help="The file to write.")],
    to: Annotated[str, typer.Option(help="torch (a .pt2 program), onnx, or sklearn (JSON).")],
    whose: Annotated[
        str | None, typer.Option("--for", help="Client whose model to export; by default what a new client gets.")
    ] = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Write a saved model with its preprocessing for another program: torch, ONNX or scikit-learn."""
    require("torch", extra="learn")
    from fedscape.trained.export import FORMS
    from fedscape.trained.export import export as exported

    if to not in FORMS:
        raise DataError(f"--to must be one of {', '.join(FORMS)}, not {to!r}")
    free(out, force)
    show(exported(model, out, to=to, client=whose), json_, lambda about: pairs("exported", _shown(about)))
