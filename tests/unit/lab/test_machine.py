"""What the lab finds out about a machine, and what it refuses."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import LabError
from ansible_collections.socle.inference.plugins.module_utils._lab import images, machine
from ansible_collections.socle.inference.plugins.module_utils._lab.podman import (
    containers_conf,
    is_mount_point,
    run_program,
)


@pytest.mark.parametrize(
    ("effective", "expected"),
    [("000001fffeffffff", False), ("000001ffffffffff", True), ("0000000000000000", False), ("0000000001000000", True)],
)
def test_cap_sys_resource_is_read_from_the_effective_set(tmp_path: Path, effective: str, expected: bool) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    status = f"Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective}\n"
    (tmp_path / "proc/self/status").write_text(status)
    assert machine.inspect_machine(tmp_path / "proc", tmp_path).sys_resource is expected


def test_a_unified_tree_is_told_from_a_hybrid_one(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("CapEff:\t0\n")
    hybrid = tmp_path / "hybrid"
    (hybrid / "unified").mkdir(parents=True)
    (hybrid / "unified/cgroup.controllers").touch()
    unified = tmp_path / "unified"
    unified.mkdir()
    (unified / "cgroup.controllers").touch()
    assert not machine.inspect_machine(tmp_path, hybrid).unified_cgroups
    assert machine.inspect_machine(tmp_path, unified).unified_cgroups


def test_limits_never_exceed_the_callers_own() -> None:
    assert machine.bounded_limit(1024, 20000) == 1024
    assert machine.bounded_limit(1048576, 20000) == 20000
    assert machine.bounded_limit(resource.RLIM_INFINITY, 20000) == 20000


def test_all_missing_packages_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(LabError) as caught:
        machine.check_programs(path=str(tmp_path))
    assert (
        "apt-get install aardvark-dns conmon iptables mmdebstrap netavark openssh-client podman runc util-linux"
        in str(caught.value)
    )


def test_an_ordinary_user_is_told_what_to_do() -> None:
    with pytest.raises(LabError, match=r"needs root.*sudo"):
        machine.check_root(uid=1000)
    machine.check_root(uid=0)


def test_too_little_space_names_needed_and_free() -> None:
    with pytest.raises(LabError, match=r"needs 12\.6 GiB below /x, where 3\.0 GiB are free"):
        machine.check_space(12.6, 3.0, "/x")
    machine.check_space(3.0, 3.0, "/x")


def test_space_is_looked_up_also_where_nothing_was_made_yet(tmp_path: Path) -> None:
    assert machine.free_gib(tmp_path / "a/b/c") == pytest.approx(machine.free_gib(tmp_path), abs=0.5)
    assert not (tmp_path / "a").exists()


def test_the_runtime_is_runc_only_where_limits_cannot_be_raised(tmp_path: Path) -> None:
    here = machine.Machine(False, False, 20000, 20000, "x86_64")
    assert 'runtime = "runc"' in containers_conf(here, tmp_path, tmp_path)
    plain = machine.Machine(True, True, 1048576, 1048576, "x86_64")
    assert 'runtime = "runc"' not in containers_conf(plain, tmp_path, tmp_path)


def test_a_failed_program_becomes_one_sentence_with_its_last_words() -> None:
    with pytest.raises(LabError) as caught:
        run_program(["sh", "-c", "echo first >&2; echo the reason >&2; exit 3"], "trying it out")
    assert str(caught.value) == "While trying it out, sh ended with status 3: the reason"
    assert caught.value.fields["rc"] == 3


def test_images_are_keyed_by_what_they_are_made_of() -> None:
    assert images.host_key("") != images.host_key("http://mirror.example/debian")
    assert images.engine_key("a==1", "") != images.engine_key("a==2", "")
    assert images.engine_key("a==1", "") == images.engine_key("a==1", "")


def test_wheels_are_asked_for_the_image_not_for_this_interpreter() -> None:
    words = images.platform_arguments("aarch64")
    assert words[:2] == ["--python-version", "3.11"]
    assert "manylinux_2_36_aarch64" in words
    assert "manylinux2014_aarch64" in words
    # Debian 12 has glibc 2.36.
    assert "manylinux_2_37_aarch64" not in words


@pytest.mark.parametrize("name", ["/home/a b/lab", "/x:y/lab", '/x"/lab'])
def test_a_folder_that_mounts_would_misread_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="SOCLE_CACHE_DIR"):
        machine.check_directory(Path(name))
    machine.check_directory(Path("/home/user.name/.cache/socle/lab"))


def test_folders_that_had_to_be_made_above_the_lab_belong_to_the_user(tmp_path: Path) -> None:
    owner = (os.geteuid(), os.getegid()) if os.geteuid() else (12345, 12346)
    lab = tmp_path / "cache" / "socle" / "lab"
    machine.make_folder(lab, owner)
    assert [(path.stat().st_uid, path.stat().st_gid) for path in (lab.parent, lab.parent.parent)] == [owner, owner]
    assert lab.stat().st_uid == os.geteuid()
    machine.make_folder(lab, (0, 0))
    assert lab.parent.stat().st_uid == owner[0]


def test_a_mount_point_is_read_from_the_kernel(tmp_path: Path) -> None:
    assert is_mount_point(Path("/proc"))
    assert not is_mount_point(tmp_path)
