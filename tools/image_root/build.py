"""Executes the instructions of the Dockerfile, each stage in a root folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tools.image_root.dockerfile import BuildStage, Instruction, parse
from tools.image_root.sandbox import Bind, Sandbox
from tools.servers.debian_package import find_program

REPOSITORY: Final = Path(__file__).parents[2]
DOCKERFILE: Final = REPOSITORY / "deploy" / "docker" / "Dockerfile"
BUILD_TOOLS: Final = "/opt/build"
# The environment of RUN: container engines pass these proxy settings too; the others name package indexes.
PASSED_PREFIXES: Final = ("PIP_", "UV_")
PASSED: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE"})
CACHES: Final = ("pip", "uv")
ACCOUNT_FILES: Final = (
    "passwd",
    "group",
    "shadow",
    "gshadow",
    "login.defs",
    "nsswitch.conf",
    "ld.so.cache",
    "os-release",
)


class BuildFailed(Exception):
    """An instruction failed. The message has its output."""


@dataclass(slots=True)
class BuiltImage:
    """The root and the settings that the last stage leaves."""

    sandbox: Sandbox
    environ: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str | None = None
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    healthcheck: Sequence[str] = ()


class DebianBase:
    """Roots that are made by debootstrap, once, and then copied: what the base image holds, and documentation."""

    skipped_commands: Final[tuple[str, ...]] = ()

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def create(self, root: Path, base: str) -> list[Bind]:
        """Creates a root from a base such as debian:trixie-slim. Returns the binds that its commands need."""
        suite = base.partition(":")[2].removesuffix("-slim")
        made = self._cache / f"debian-{suite}"
        if not made.exists():
            self._bootstrap(suite, made)
        root.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--reflink=auto", str(made), str(root)], check=True)  # noqa: S603, S607
        own = Path("/usr/local/share/ca-certificates")  # a proxy of this machine may have its own authority
        if own.is_dir():
            shutil.copytree(own, root / own.relative_to("/"), dirs_exist_ok=True)
        return [Bind(source=Path("/etc") / name, target=f"/etc/{name}") for name in ("resolv.conf", "hosts")]

    def _bootstrap(self, suite: str, made: Path) -> None:
        program = find_program("debootstrap", ("debootstrap",), self._cache / "debootstrap")
        unpacked = made.with_suffix(".new")
        shutil.rmtree(unpacked, ignore_errors=True)
        scripts = program.path.parents[2] / "usr" / "share" / "debootstrap"
        environ = {**os.environ, "DEBOOTSTRAP_DIR": str(scripts)}
        command = ["/bin/sh", str(program.path), "--variant=minbase", suite, str(unpacked)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise BuildFailed(done.stdout[-2000:] + done.stderr)
        unpacked.rename(made)


class HostBase:
    """Roots with the programs of this machine, read-only: they take no time to make. Packages are not installed, and
    the tools of the build are those of this environment.
    """

    skipped_commands: Final = ("apt-get update", f"python3 -m venv {BUILD_TOOLS} ")

    def create(self, root: Path, _base: str) -> list[Bind]:
        binds = [Bind(source=Path("/usr"), target="/usr"), Bind(source=Path(sys.prefix), target=BUILD_TOOLS)]
        if not Path(sys.base_prefix).is_relative_to("/usr"):
            binds.append(Bind(source=Path(sys.base_prefix), target=sys.base_prefix))
        root.mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            place = Path("/") / name
            if place.is_symlink():
                (root / name).symlink_to(place.readlink())
            elif place.is_dir():
                binds.append(Bind(source=place, target=str(place)))
        (root / "etc").mkdir()
        for name in ACCOUNT_FILES:
            if (Path("/etc") / name).exists():
                shutil.copy(Path("/etc") / name, root / "etc" / name)
        shared = ("ssl", "resolv.conf", "hosts")
        return [*binds, *(Bind(source=Path("/etc") / name, target=f"/etc/{name}") for name in shared)]


class ImageBuilder:
    """Builds the image of a Dockerfile under `folder`. `base` creates the roots of its stages."""

    def __init__(self, folder: Path, base: DebianBase | HostBase, *, context: Path = REPOSITORY) -> None:
        self._folder = folder.absolute()
        self._base = base
        self._context = context
        self._images: dict[str, BuiltImage] = {}
        self.skipped: list[str] = []

    def build(self, dockerfile: Path = DOCKERFILE) -> BuiltImage:
        """Executes all instructions and returns the last stage."""
        for stage in parse(dockerfile.read_text()):
            built = self._build_stage(stage)
            self._images[stage.name] = built
        return built

    def _build_stage(self, stage: BuildStage) -> BuiltImage:
        root = self._folder / stage.name
        binds = self._base.create(root, stage.base)
        image = BuiltImage(
            Sandbox(root, binds), environ={"PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"}
        )
        image.sandbox.prepare()
        for instruction in stage.instructions:
            self._execute(image, instruction)
        return image

    def _execute(self, image: BuiltImage, instruction: Instruction) -> None:
        words = instruction.words if instruction.name not in {"RUN", "HEALTHCHECK"} else []
        match instruction.name:
            case "RUN":
                self._run(image, instruction.text)
            case "COPY":
                self._copy(image, instruction, words)
            case "WORKDIR":
                image.folder = words[0]
                (image.sandbox.root / words[0].lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "ENV":
                image.environ.update(dict(word.split("=", 1) for word in words))
            case "USER":
                image.user = words[0]
            case "ENTRYPOINT":
                image.entrypoint = words
            case "CMD":
                image.command = words
            case "HEALTHCHECK":
                image.healthcheck = Instruction("CMD", {}, instruction.text.removeprefix("CMD ")).words
            case _:  # EXPOSE and STOPSIGNAL only describe the image
                pass

    def _run(self, image: BuiltImage, command: str) -> None:
        if command.startswith(self._base.skipped_commands):
            self.skipped.append(command)
            return
        environ = {**_passed_environment(), "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive", **image.environ}
        sandbox = replace(image.sandbox, binds=[*image.sandbox.binds, *_caches()])
        sandbox.prepare()
        code, output = sandbox.run(["/bin/sh", "-c", command], environ=environ, folder=image.folder)
        if code:
            raise BuildFailed(f"RUN {command}\nended with {code}:\n{output[-4000:]}")

    def _copy(self, image: BuiltImage, instruction: Instruction, words: Sequence[str]) -> None:
        *sources, target = words
        origin = self._images[instruction.flags["from"]].sandbox.root if "from" in instruction.flags else self._context
        folder = image.sandbox.root / (image.folder.lstrip("/") if not target.startswith("/") else "")
        for source in sources:
            place = origin / source.lstrip("/")
            at = folder / target.lstrip("/")
            if place.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.pyc") if origin == self._context else None
                copy = shutil.copy2 if origin == self._context else os.link  # a stage is not changed afterwards
                shutil.copytree(place, at, symlinks=True, dirs_exist_ok=True, ignore=ignored, copy_function=copy)
                continue
            at = at / place.name if target.endswith("/") else at
            at.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(place, at)
            if mode := instruction.flags.get("chmod"):
                at.chmod(int(mode, 8))


def _caches() -> Iterator[Bind]:
    """Yields the download caches of this user: a second build then needs no network."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for name in CACHES:
        if (cache / name).is_dir():
            yield Bind(source=cache / name, target=f"/root/.cache/{name}", writable=True)
    for variable in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        if (place := Path(os.environ.get(variable) or "-")).is_dir():
            yield Bind(source=place, target=str(place))


def _passed_environment() -> dict[str, str]:
    passed = {
        name: value for name, value in os.environ.items() if name.upper() in PASSED or name.startswith(PASSED_PREFIXES)
    }
    return {**passed, "UV_LINK_MODE": "copy"}
