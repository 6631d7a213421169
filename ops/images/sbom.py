"""`python -m ops.images.sbom NAME ROOT FILE`: the packages in an image's file system, as CycloneDX.

Python's from their metadata, Debian's from dpkg's list.
"""

import re
import sys
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

_LICENSES = LicenseFactory()


def python_packages(root: Path) -> Iterator[Component]:
    folders = [*root.glob("usr/local/lib/python3*/*-packages"), *root.glob("usr/lib/python3*/*-packages")]
    for package in distributions(path=[str(folder) for folder in folders]):
        name = re.sub(r"[-_.]+", "-", package.name).lower()
        yield _component(
            package.name, package.version, PackageURL("pypi", name=name, version=package.version), _license(package)
        )


def _license(package: Distribution) -> str:
    """An SPDX expression or a name; empty if the package has none, or only its whole text."""
    meta = package.metadata
    text = str(meta.get("License-Expression") or meta.get("License") or "").strip()
    return text if len(text) < 100 and "\n" not in text else ""


def debian_packages(root: Path) -> Iterator[Component]:
    """The installed ones."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', (root / "etc/os-release").read_text(), re.MULTILINE))
    for paragraph in (root / "var/lib/dpkg/status").read_text().strip().split("\n\n"):
        package = Parser().parsestr(paragraph)
        if package["Status"] == "install ok installed":
            url = PackageURL(
                "deb",
                release["ID"],
                package["Package"],
                package["Version"],
                {"arch": package["Architecture"], "distro": f"{release['ID']}-{release['VERSION_ID']}"},
            )
            yield _component(package["Package"], package["Version"], url)


def _component(name: str, version: str, url: PackageURL, license_: str = "") -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        purl=url,
        bom_ref=url.to_string(),
        licenses=[_LICENSES.make_from_string(license_)] if license_ else [],
    )


def document(name: str, root: Path) -> str:
    """Raises: ValueError if it breaks the schema."""
    image = Component(type=ComponentType.CONTAINER, name=name, bom_ref=name)
    bom = Bom(components={one.purl: one for one in [*python_packages(root), *debian_packages(root)]}.values())
    bom.metadata.component = image
    bom.register_dependency(image, bom.components)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"the list of {name} breaks the schema: {error}")
    return text


if __name__ == "__main__":
    image, root, file = sys.argv[1:]
    Path(file).write_text(document(image, Path(root)))
