"""GPUs by name, without any: what `--sim-gpus` and `--gpus` mean, and what CUDA_VISIBLE_DEVICES leaves of them."""

from __future__ import annotations

import pytest

from trainq.base.errors import BadValue
from trainq.domain.devices import Device, of_type, parse_sim, parse_wanted, restrict, visible_in

A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"
ONE = Device("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", A100, 81920, number=0)
TWO = Device("GPU-36c9561a-02ef-5c4d-3733-f0a56c42dc45", A100, 81920, number=1)
THREE = Device("GPU-36ffffff-02ef-5c4d-3733-f0a56c42dc45", T4, 15360, number=2)
HOST = (ONE, TWO, THREE)
PART = Device("MIG-ec4c3916-65fa-5948-b9b5-9f21a2ddfcc0", f"{A100} MIG 2g.20gb", 19968, number=0)
OTHER_PART = Device("MIG-000d40d3-5924-5906-9879-8b69bf58689b", f"{A100} MIG 1g.20gb", 19968, number=0)
PARTS = (PART, OTHER_PART, TWO)


def test_simulated_gpus_need_no_hardware():
    """E16: so many, of a type, with so much memory; each has an id of its own."""
    assert parse_sim("2") == (Device("sim-0", "sim", number=0), Device("sim-1", "sim", number=1))
    assert parse_sim("1:a100") == (Device("sim-0", "a100", number=0),)
    assert parse_sim("1:NVIDIA A100-SXM4-80GB:80G") == (Device("sim-0", A100, 81920, number=0),)
    assert parse_sim("0") == parse_sim("0:a100:80G") == ()
    assert len({device.id for device in parse_sim("1024")}) == 1024
    assert all(device.is_simulated for device in parse_sim("3"))
    assert not any(device.is_simulated for device in (*HOST, *PARTS))


def test_the_type_of_a_worker_names_its_simulated_gpus():
    """`--gpu-type` is their name where `--sim-gpus` has none, and chooses among them where it has."""
    assert parse_sim("1", "v100") == (Device("sim-0", "v100", number=0),)
    assert parse_sim("1:a100", "v100") == (Device("sim-0", "a100", number=0),)
    with pytest.raises(BadValue, match=r"no GPU of type 'v100'.*a100"):
        of_type(parse_sim("1:a100", "v100"), "v100")


@pytest.mark.parametrize(
    "text",
    ["", ":", "x", "-1", "+1", "1.5", "1025", "2" * 30, "\uff12", "2:", "2: ", "2::80G", "2:a100:", "2:a100:80",
     "2:a100:x", "2:a100:1K", "2:a100:80G:1", "2:cpu", "2:-", "2:a\tb", "2:" + "x" * 300],
)  # fmt: skip
def test_anything_else_simulates_nothing(text):
    with pytest.raises(BadValue) as refused:
        parse_sim(text)
    assert "\n" not in refused.value.message
    assert "\t" not in refused.value.message


def test_which_gpus_are_wanted():
    """Numbers, ids and beginnings of ids, as CUDA_VISIBLE_DEVICES has them; all; or none."""
    assert parse_wanted("auto") is None
    assert parse_wanted("none") == ()
    assert parse_wanted("0, 1") == ("0", "1")
    assert parse_wanted("GPU-8932f937,1,MIG-GPU-8932f937/1/0") == ("GPU-8932f937", "1", "MIG-GPU-8932f937/1/0")
    for wrong in ("", ",", "0,", "all", "-1", "0 1", "0,0", "GPU 0", "gpu-8932", "1e3", "٣", "0\n1"):
        with pytest.raises(BadValue):
            parse_wanted(wrong)


def test_a_worker_offers_what_is_named():
    """By number or id, in the order of the names; auto is all."""
    assert restrict(HOST, None, None) == HOST
    assert restrict(HOST, (), None) == ()
    assert restrict(HOST, ("2", "0"), None) == (THREE, ONE)
    assert restrict(HOST, ("GPU-89", TWO.id), None) == (ONE, TWO)
    assert restrict(parse_sim("12"), ("sim-1", "3"), None) == (parse_sim("12")[1], parse_sim("12")[3])


def test_a_named_gpu_that_is_not_there_is_refused():
    """And the message says which there are."""
    with pytest.raises(
        BadValue, match=r"no GPU '3' here; there are: 0 \(GPU-8932f937, NVIDIA A100-SXM4-80GB\), 1 .*T4"
    ):
        restrict(HOST, ("0", "3"), None)
    with pytest.raises(BadValue, match="no GPU 'GPU-77' here"):
        restrict(HOST, ("GPU-77",), None)
    with pytest.raises(BadValue, match="no GPU '0' here; there is none"):
        restrict((), ("0",), None)
    with pytest.raises(BadValue, match=r"more than one GPU begins with 'GPU-36'; there are: 1 .*, 2 "):
        restrict(HOST, ("GPU-36",), None)
    with pytest.raises(BadValue, match="GPU GPU-89 is named twice"):
        restrict(HOST, ("0", "GPU-89"), None)
    with pytest.raises(BadValue, match="and 92 more"):
        restrict(parse_sim("100"), ("100",), None)


@pytest.mark.parametrize(
    ("visible", "left"),
    [
        (None, (ONE, TWO, THREE)),
        ("0,1,2", (ONE, TWO, THREE)),
        ("2,1", (THREE, TWO)),  # in the order of the sequence
        (" 2 , 1 ", (THREE, TWO)),
        ("0,2,-1,1", (ONE, THREE)),  # the guide's own example: what precedes the invalid one
        ("0,7,1", (ONE,)),
        ("0,", (ONE,)),
        ("GPU-8932f937", (ONE,)),  # enough of it to be one GPU's
        (f"{TWO.id},GPU-8932f937", (TWO, ONE)),
        ("GPU-8932f937,GPU-36", (ONE,)),  # of two GPUs
        ("GPU-8932f937,GPU-77,GPU-36c", (ONE,)),
        ("", ()),
        (" ", ()),
        ("-1", ()),
        ("-1,0", ()),
        ("NoDevFiles", ()),
        ("none", ()),
        ("all", ()),
        ("0,1,0", ()),  # twice the same
        ("GPU-89,GPU-8932", ()),
        ("0,GPU-36c", (ONE,)),  # of two kinds: not documented
        ("1gpu", ()),
        ("9" * 5000, ()),
        ("MIG-ec4c3916-65fa-5948-b9b5-9f21a2ddfcc0", ()),
        ("\0,\n", ()),
    ],
)
def test_a_worker_has_no_more_than_cuda_shows(visible, left):
    """CUDA programming guide 5.2.1.1; where that says nothing, less."""
    assert visible_in(HOST, visible) == left
    assert restrict(HOST, None, visible) == left


@pytest.mark.parametrize(
    ("visible", "left"),
    [
        (None, PARTS),
        (PART.id, (PART,)),
        ("MIG-000d", (OTHER_PART,)),
        (f"{OTHER_PART.id},{PART.id}", (OTHER_PART, PART)),
        ("0", (PART,)),  # CUDA takes the first part
        ("0,1", (PART, TWO)),
        ("MIG-", ()),
        ("MIG-77", ()),
        ("GPU-8932f937", ()),
        (f"MIG-{ONE.id}/1/0", ()),  # the form of old drivers, on a host that lists the new one
    ],
)
def test_parts_of_a_gpu_are_gpus(visible, left):
    assert visible_in(PARTS, visible) == left


def test_named_gpus_are_among_the_visible_ones():
    """`--gpus` cannot reach beyond the worker's own CUDA_VISIBLE_DEVICES; numbers are the host's."""
    assert restrict(HOST, ("1",), "2,1") == (TWO,)
    assert restrict(PARTS, ("0",), None) == (PART, OTHER_PART)
    assert restrict(PARTS, ("0",), "MIG-000d") == (OTHER_PART,)
    with pytest.raises(BadValue, match=r"GPU 0 is not in CUDA_VISIBLE_DEVICES='2,1'; there are: 2 .*, 1 "):
        restrict(HOST, ("0",), "2,1")
    with pytest.raises(BadValue, match="GPU 0 is not in CUDA_VISIBLE_DEVICES=''; there is none"):
        restrict(HOST, ("0",), "")
    with pytest.raises(BadValue, match="no GPU '7' here"):
        restrict(HOST, ("7",), "")


def test_simulated_gpus_are_always_visible():
    """They are there to try things on a host without any, where CUDA_VISIBLE_DEVICES is often empty."""
    simulated = parse_sim("2")
    assert restrict(simulated, None, "") == restrict(simulated, None, "0") == simulated
    assert restrict(simulated, ("1",), "") == simulated[1:]


def test_a_worker_of_one_type():
    """Q10: `--gpu-type` takes the devices that fit, by the words of their names; none is refused."""
    assert of_type(HOST, None) == HOST
    assert of_type(HOST, "nvidia.a100") == (ONE, TWO)
    assert of_type(HOST, "t4") == (THREE,)
    assert of_type((), None) == ()
    with pytest.raises(BadValue, match="no GPU of type 'v100' for this worker; there are: 0 "):
        of_type(HOST, "v100")
    with pytest.raises(BadValue, match="there is none"):
        of_type((), "v100")
