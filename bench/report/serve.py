"""The tables of the pages on serving and on Annif."""

from __future__ import annotations

from bench.report.tables import Part

LOAD = "python -m bench.speed.bench_serve MODEL --annif FOLDER PROJECT --annif-python PYTHON"
PARTS = {
    "serve": Part("serve", LOAD),
    "serve-alone": Part("serve_alone", "python -m bench.speed.bench_serve MODEL"),
    "serve-minutes": Part("serve_minutes", "python -m bench.speed.bench_serve MODEL --rounds 0 --minutes 10"),
    "annif": Part("annif", "python -m bench.speed.bench_annif FOLDER --dev 2000"),
    "annif-all": Part("annif_all", "python -m bench.speed.bench_annif FOLDER --records 90452 --dev 19949"),
}
