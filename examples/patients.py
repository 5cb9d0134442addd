"""Make up 2,000 patients with one to three stays each: `python examples/patients.py` writes
examples/patients.csv.
"""

import csv
from datetime import date, timedelta
from pathlib import Path

import numpy as np

rng = np.random.default_rng(0)
with Path(__file__).with_suffix(".csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["patient", "age", "sex", "weight", "smoker", "stage", "admitted", "outcome"])
    for patient in range(2000):
        age, sex, smoker = rng.integers(18, 100), rng.choice(["f", "m"]), rng.random() < 0.3
        for _ in range(rng.integers(1, 4)):
            weight = (
                "" if rng.random() < 0.1 else round(rng.normal(78 if sex == "m" else 65, 12), 1)
            )
            stage = rng.choice(
                ["I", "II", "III"], p=[0.5, 0.3, 0.2] if age < 50 else [0.2, 0.4, 0.4]
            )
            day = date(2020, 1, 1) + timedelta(days=int(731 * rng.beta(2, 1)))
            is_back = rng.random() < (
                0.9 if (age > 65) != smoker else 0.1
            )  # what no single column tells
            row = [
                age,
                sex,
                weight,
                "yes" if smoker else "no",
                stage,
                day,
                "readmitted" if is_back else "recovered",
            ]
            table.writerow([patient, *row])
