"""`pe init`: a commented starting recipe for a folder of images."""

from __future__ import annotations

from pathlib import Path

import click

from pe.cli.asking import asking
from pe.errors import RecipeError


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--classes", help="The labels, separated by commas; '' for none. They are public.")
@click.option("--privacy-unit", "unit", help="record, subfolder, or a column of labels.csv (docs/data.md).")
@click.option("--declared-size", type=click.IntRange(min=1), help="About how many records there are; public.")
@click.option("--size", type=click.IntRange(min=1), default=64, show_default=True, help="Height and width in pixels.")
@click.option("--channels", type=click.Choice(["1", "3"]), default="3", show_default=True, help="1 = grey, 3 = colour.")
@click.option(
    "--public",
    type=click.Path(path_type=Path),
    default=Path("public"),
    show_default=True,
    help="Folder of public images to draw from.",
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("recipe.yaml"), show_default=True)
def init(
    folder: Path,
    classes: str | None,
    unit: str | None,
    declared_size: int | None,
    size: int,
    channels: str,
    public: Path,
    out: Path,
) -> None:
    """Write a commented starting recipe for the images in FOLDER."""
    from pe.planning.apart import check_apart
    from pe.private.files import find_labels
    from pe.private.folder import ImageFolder
    from pe.recipe.starter import starter_recipe

    found = find_labels(folder)
    check_apart(folder, [public])
    if out.exists():
        raise RecipeError(f"{out} exists already: name another --out, or remove it.")
    with asking("--classes, --privacy-unit and --declared-size"):
        if classes is None:
            click.echo("The class list will be public. Confirm it or type another (comma-separated, empty for none).")
            classes = click.prompt("Classes", default=",".join(found))
        if unit is None:
            unit = click.prompt("Privacy unit (record, subfolder, or a column such as patient)", default="record")
        if declared_size is None:
            declared_size = click.prompt("Public, rounded number of records", type=click.IntRange(min=1))
    names = [name.strip() for name in classes.split(",") if name.strip()]
    ImageFolder(folder, size=size, classes=names, privacy_unit=unit).open()
    out.write_text(
        starter_recipe(
            folder, names, unit=unit, declared_size=declared_size, size=size, channels=int(channels), public=public
        ),
        encoding="utf-8",
    )
    click.echo(f"Wrote {out}. Read it, then: pe plan {out}, pe run {out}")
