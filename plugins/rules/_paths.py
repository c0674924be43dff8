"""Where a path lies: in the project, outside it, in a temporary folder, in the system. By its letters alone: no file is
looked at, so a symbolic link counts as where it stands.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from tandem.plugins.rules._words import words

SOMEWHERE = "/\0/\0/\0/\0/\0/project"
"""Stands for a project's folder that nobody named."""
SOME_HOME = "/\0home"
"""Stands for a home folder that nobody named."""

TEMPORARY = words(
    """
    /tmp /var/tmp /dev/shm /private/tmp /var/folders /private/var/folders
    """
)
SYSTEM = words(
    """
    /bin /boot /dev /etc /lib /lib32 /lib64 /proc /run /sbin /sys /usr /var
    /System /Library /Applications /private/etc /private/var c:/windows
    """
)
HARMLESS = words(
    """
    /dev/null /dev/zero /dev/full /dev/tty /dev/stdin /dev/stdout /dev/stderr /dev/ptmx
    """
)
SECRETS = words(
    """
    .ssh .aws .gnupg .azure .kube .config/gh .config/gcloud .docker/config.json .netrc .pgpass .my.cnf .npmrc
    .pypirc .git-credentials .config/git/credentials .cargo/credentials .cargo/credentials.toml
    .password-store .local/share/keyrings .mozilla .config/google-chrome
    """
)
"""Below the home folder: what holds credentials."""
EVERYTHING = frozenset(("*", ".*", "**", "{*,.*}", "{.*,*}", ".[!.]*", ".[^.]*", "*.*", ""))
"""The last part of a path that means all that lies in a folder."""

ROOT = re.compile(
    r"^[\s>*-]*(?:(?:primary |current )?working directory|workspace root folder):[ \t]*"
    r"[`\"']?(/[^\n`\"']*|[A-Za-z]:[\\/][^\n`\"']*)"
    r"|<cwd>([^<\n]+)</cwd>",
    re.IGNORECASE | re.MULTILINE,
)
HOME = re.compile(r"^[\s>*-]*(?:user )?home directory:[ \t]*[`\"']?(/[^\n`\"']*)", re.IGNORECASE | re.MULTILINE)
HOMES = re.compile(r"(/home/[^/]+|/Users/[^/]+|/root)(?:/|$)")


@dataclass(frozen=True, slots=True)
class Project:
    """The folder that a conversation is about."""

    root: str = SOMEWHERE
    home: str = SOME_HOME
    also: tuple[str, ...] = ()
    """Other folders that count as inside."""

    @property
    def known(self) -> bool:
        return self.root != SOMEWHERE

    def at(self, path: str) -> str:
        """A path in its normal form: absolute, `/` between the parts, none of them `.` or `..`."""
        path = path.replace("\\", "/") if re.match(r"[A-Za-z]:", self.root) else path
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        drive = re.match(r"[A-Za-z]:/", path)
        if not path.startswith("/") and not drive:
            path = f"{self.root}/{path}"
        path = posixpath.normpath(path)
        path = path[1:] if path.startswith("//") else path
        return path[0].lower() + path[1:] if drive or path[1:2] == ":" else path

    def inside(self, place: str) -> bool:
        """Whether a place, as `at` writes it, is the project's folder, or in it, or in one that counts as it."""
        return any(below(place, self.at(folder)) for folder in (self.root, *self.also))

    def outside(self, place: str) -> bool:
        """Whether a place is certainly in neither. False when the letters can't tell."""
        if self.inside(place) or temporary(place) or place in HARMLESS or place.startswith("/dev/fd/"):
            return False
        if below(place, SOME_HOME):
            return False
        return self.known or place.startswith("/\0/")  # without a known root only `..` leads out for certain

    def tree(self, place: str) -> bool:
        """Whether all of a place would be too much for anybody: the project itself, what it lies in, a home folder, a
        folder directly below `/`."""
        return (
            below(self.at(self.root), place)
            or place in (self.home, *TEMPORARY)
            or place.count("/") == 1
            or HOMES.fullmatch(place) is not None
        )

    def secret(self, place: str) -> bool:
        """Whether a place is one of the home folder that holds credentials."""
        homes = {self.home, *(found[1] for found in [HOMES.match(place)] if found)}
        return any(below(place, f"{home}/{name}") for home in homes for name in SECRETS)


def project_of(system: str, also: Seq[str] = ()) -> Project:
    """The project as a client's system prompt states it: `Working directory: ...`, or `<cwd>...</cwd>`.

    Where a prompt states several folders of which one holds the other, the outer counts; `/` never does.
    """
    named = [(found[1] or found[2]).strip().rstrip("/\\") for found in ROOT.finditer(system)]
    roots = [root.replace("\\", "/") for root in named if root and not re.fullmatch(r"[A-Za-z]:", root)]
    if not roots:
        return Project(also=tuple(also))
    root = min((one for one in roots if below(roots[0], one)), key=len)
    stated, derived = HOME.search(system), HOMES.match(root)
    home = stated[1].strip().rstrip("/") if stated else derived[1] if derived else ""
    return Project(Project(root).at(root), home or SOME_HOME, tuple(also))


def below(place: str, folder: str) -> bool:
    """Whether `place` is `folder` or lies in it."""
    return place == folder or place.startswith(folder if folder.endswith("/") else folder + "/")


def temporary(place: str) -> bool:
    return any(below(place, folder) for folder in TEMPORARY)


def of_system(place: str) -> bool:
    """Whether a place belongs to the operating system; a disk or another device does too."""
    if temporary(place) or place in HARMLESS or place.startswith("/dev/fd/"):
        return False
    return place == "/" or any(below(place.lower(), folder.lower()) for folder in SYSTEM)


def whole_folder(path: str) -> str:
    """The folder all of whose content a path with wildcards means (`a/*` -> `a`); else the path itself."""
    head, _, last = path.rpartition("/")
    if last in EVERYTHING and (head or last):
        return head or ("/" if path.startswith("/") else ".")
    return path
