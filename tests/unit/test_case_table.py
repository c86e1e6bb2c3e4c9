"""Case tables: what a cell may hold, what a file may be, and that nothing is lost on the way."""

import os
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnsim.errors import InputError
from attnsim.models.question import case_file as case_table
from attnsim.models.question.case_file import COLUMNS, read_cases, read_table, write_table
from attnsim.models.question.case_row import parse_row
from attnsim.models.question.columns import REQUIRED_COLUMNS

SMALLEST = {"gpu": "h100-sxm5-80gb", "batch": "4", "heads_q": "32", "seq_q": "8192", "head_dim": "128"}
HEADER = ",".join(REQUIRED_COLUMNS)


def problem(**cells: object) -> str:
    """What `parse_row` says about the smallest row with these cells changed."""
    with pytest.raises(InputError) as caught:
        parse_row({**SMALLEST, **cells})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def file_problem(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as caught:
        read_cases(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


class TestRow:
    def test_smallest_row_says_what_was_assumed(self) -> None:
        case = parse_row(SMALLEST)
        assert (case.heads_kv, case.seq_kv, case.head_dim_v) == (32, 8192, 128)
        assert (case.passes, case.dtype, case.algorithm, case.cache) == ("fwd", "bf16", "flash", "warm")
        assert (case.causal, case.window, case.launch, case.time_s, case.source) == (
            False,
            None,
            "stream",
            None,
            "",
        )
        assert case.assumed["causal"] == "causal empty, taken as 0"
        assert case.assumed["heads_kv"] == "heads_kv empty, taken as 32"

    def test_full_row_assumes_nothing(self) -> None:
        case = parse_row(
            {
                **SMALLEST,
                "source": "mine",
                "implementation": "flash-attn.3",
                "algorithm": "sliding-window",
                "pass": "fwd+bwd",
                "dtype": "fp16",
                "heads_kv": "8",
                "seq_kv": "16384",
                "head_dim_v": "64",
                "causal": "1",
                "window": "1024",
                "cache": "cold",
                "time_s": "1.5e-3",
                "version": "0.24.0",
                "launch": "graph",
                "clock_mhz": "1830",
                "page_size": "64",
                "options": "sink=4; block = 128;",
                "colour": "blue",
            }
        )
        assert case.assumed == {}
        assert (case.heads_kv, case.seq_kv, case.head_dim_v, case.window) == (8, 16384, 64, 1024)
        assert (case.time_s, case.clock_mhz, case.page_size) == (1.5e-3, 1830.0, 64)
        assert case.options == {"sink": "4", "block": "128"}

    @pytest.mark.parametrize(
        "cell", ["32", " 32 ", "32.0", "32.", "3.2e1", "+32", 32, 32.0, np.int64(32), np.float32(32)]
    )
    def test_whole_numbers_as_spreadsheets_write_them(self, cell: object) -> None:
        assert parse_row({**SMALLEST, "heads_q": cell}).heads_q == 32

    @pytest.mark.parametrize(
        "cell",
        [
            "0",
            "-4",
            "1.5",
            "1e30",
            "inf",
            "0x10",
            "٣",
            "4 heads",
            True,
            "1e-3",
        ],
    )
    def test_whole_numbers_refused(self, cell: object) -> None:
        message = problem(batch=cell)
        assert message == f"batch is {str(cell)!r}; allowed: a whole number from 1 to 1048576"

    @pytest.mark.parametrize("cell", ["", "  ", "nan", "NaN", "N/A", "null", None, float("nan"), pd.NA, pd.NaT])
    def test_empty_cells(self, cell: object) -> None:
        assert parse_row({**SMALLEST, "window": cell, "causal": cell}).window is None
        assert problem(seq_q=cell) == "seq_q is empty; every row needs it"

    @pytest.mark.parametrize(
        ("cell", "causal"),
        [
            ("TRUE", True),
            ("true", True),
            ("1", True),
            ("1.0", True),
            (True, True),
            (np.True_, True),
            (1, True),
            ("False", False),
            ("0", False),
            (0.0, False),
            (False, False),
        ],
    )
    def test_causal(self, cell: object, causal: bool) -> None:
        case = parse_row({**SMALLEST, "causal": cell})
        assert case.causal is causal
        assert "causal" not in case.assumed

    @pytest.mark.parametrize(
        ("column", "cell", "allowed"),
        [
            ("dtype", "fp12", "fp32, fp16, bf16, fp8"),
            ("pass", "sideways", "fwd, bwd, fwd+bwd, decode"),
            ("cache", "tepid", "cold, warm"),
            ("launch", "rocket", "stream, host, graph, kernel"),
            ("causal", "2", "1, 0, true, false or empty"),
            ("time_s", "0", "a number of seconds above 0"),
            ("time_s", "-1e-3", "a number of seconds above 0"),
            ("time_s", "1 ms", "a number of seconds above 0"),
            ("clock_mhz", "inf", "a number of MHz above 0"),
            ("options", "sink", "key=value;key=value with each key once"),
            ("options", "a=1;a=2", "key=value;key=value with each key once"),
        ],
    )
    def test_each_bad_cell_has_its_line(self, column: str, cell: str, allowed: str) -> None:
        message = problem(**{column: cell})
        assert message.startswith(f"{column} is '")
        assert message.endswith(f"'; allowed: {allowed}")

    def test_several_bad_cells_are_all_named_on_one_line(self) -> None:
        message = problem(batch="0", dtype="x" * 500, gpu="", notes="a\nb")
        assert [part.split()[0] for part in message.split("; ") if " is " in part] == [
            "gpu",
            "batch",
            "dtype",
        ]
        assert len(message) < 300

    def test_names_are_folded_to_lower_case_and_aliases_known(self) -> None:
        case = parse_row({**SMALLEST, "gpu": " H100-SXM5-80GB ", "dtype": "BFloat16", "algorithm": "Flash"})
        assert (case.gpu, case.dtype, case.algorithm) == ("h100-sxm5-80gb", "bf16", "flash")

    def test_decode_needs_the_length_of_its_cache(self) -> None:
        assert (
            problem(**{"pass": "decode", "seq_q": "1"}) == "seq_kv is empty; a decode row needs the keys in its cache"
        )

    @settings(deadline=None)
    @given(st.dictionaries(st.sampled_from([*COLUMNS, "launch", "options"]), st.text() | st.floats() | st.none()))
    def test_any_row_is_a_case_or_one_line(self, cells: dict[str, object]) -> None:
        try:
            case = parse_row({**SMALLEST, **cells})
        except InputError as error:
            assert str(error)
            assert len(str(error).splitlines()) == 1
        else:
            assert min(case.batch, case.heads_q, case.heads_kv, case.seq_q, case.seq_kv, case.head_dim) >= 1


class TestFile:
    def test_rows_order_unknown_columns_and_text_are_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "in.csv"
        path.write_text(f'\ufeff{HEADER},colour,notes\nb,2,1,8,64,blue,"x, ""y"""\na,007,1,8,64,,NaN\n')
        frame = read_table(path)
        assert list(frame.columns) == [*REQUIRED_COLUMNS, "colour", "notes"]
        assert frame.to_numpy().tolist() == [
            ["b", "2", "1", "8", "64", "blue", 'x, "y"'],
            ["a", "007", "1", "8", "64", "", "NaN"],
        ]

    def test_spreadsheet_habits(self, tmp_path: Path) -> None:
        path = tmp_path / "in.csv"
        path.write_bytes(f"\r\n{HEADER.replace(',', ' , ')},,\r\na,1,1,8,64,,\r\n\r\nb,1,1\r\n,,,,,,\r\n".encode())
        assert read_table(path).to_numpy().tolist() == [
            ["a", "1", "1", "8", "64"],
            ["b", "1", "1", "", ""],
            [""] * 5,
        ]

    def test_a_table_without_rows_is_a_table(self, tmp_path: Path) -> None:
        path = tmp_path / "in.csv"
        path.write_text(f"{HEADER}\n")
        assert list(read_table(path).columns) == list(REQUIRED_COLUMNS)

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("", "is empty"),
            (" \n\n", "is empty"),
            (b"\x89PNG\r\n\x1a\n\x00\x00", "not a CSV file in UTF-8"),
            ("gpu,batch\n".encode("utf-16"), "not a CSV file in UTF-8"),
            (b"PAR1 but not really", "not a readable Parquet file"),
            ("h100,1,2,3,4\n", "no column gpu"),
            ("1,2,3,4\n5,6,7,8\n", "the first line holds numbers"),
            (f"{HEADER.replace(',', ';')}\na;1;1;8;64\n", "separated by ';'"),
            (f"{HEADER.replace(',', ';')}\na;1;1;8;64,5\n", "separated by ';'"),
            (f"{HEADER},gpu\n", "column 'gpu' appears more than once"),
            (f"{HEADER}\na,1,1,8,64,an, unquoted note\n", "line 2: 7 cells under 5 column names"),
            (f'{HEADER}\n"a,1,1,8,64\n', "not CSV"),
            ("gpu,batch,heads,extent,head_dim\n", "no column seq_q (nearest: extent)"),
        ],
        ids=lambda value: None if isinstance(value, bytes) else str(value)[:20],
    )
    def test_refused_in_one_line(self, tmp_path: Path, content: bytes | str, said: str) -> None:
        assert said in file_problem(tmp_path / "in.csv", content)

    def test_missing_folder_and_too_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(InputError, match=r"does not exist"):
            read_table(tmp_path / "none.csv")
        with pytest.raises(InputError, match=r"is a folder"):
            read_table(tmp_path)
        monkeypatch.setattr(case_table, "MAX_FILE_BYTES", 10)
        assert "split it into several tables" in file_problem(tmp_path / "in.csv", f"{HEADER}\n")

    def test_a_link_to_nowhere_else_than_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
        with pytest.raises(InputError, match=r"cannot be read"):
            read_table(tmp_path / "loop.csv")

    @pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
    def test_round_trip(self, tmp_path: Path, name: str) -> None:
        frame = pd.DataFrame([SMALLEST, {**SMALLEST, "batch": "", "gpu": 'a "b", c'}]).assign(
            predicted_s=[1.5e-3, float("nan")]
        )
        write_table(frame, tmp_path / name)
        back = read_table(tmp_path / name)
        assert list(back.columns) == [*SMALLEST, "predicted_s"]
        assert back["gpu"].tolist() == ["h100-sxm5-80gb", 'a "b", c']
        assert parse_row(dict(zip(back.columns, back.iloc[0], strict=True))).seq_q == 8192
        assert [path.name for path in tmp_path.iterdir()] == [name]


class TestWrite:
    FRAME = pd.DataFrame([SMALLEST])

    def test_a_file_that_cannot_be_written_is_told_once(self, tmp_path: Path) -> None:
        path = tmp_path / "none" / "out.csv"
        with pytest.raises(InputError) as caught:
            write_table(self.FRAME, path)
        reason = "No such file or directory; give a folder that exists"
        assert str(caught.value) == f"{path} cannot be written: {reason}"

    def test_an_interrupted_write_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "out.csv"
        path.write_text("before")

        def fails(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(pd.DataFrame, "to_csv", fails)
        with pytest.raises(InputError, match=r"cannot be written: No space left on device"):
            write_table(self.FRAME, path)
        assert path.read_text() == "before"
        assert list(tmp_path.iterdir()) == [path]

    def test_links_and_permissions_stay(self, tmp_path: Path) -> None:
        real, link = tmp_path / "real.csv", tmp_path / "link.csv"
        real.write_text("before")
        real.chmod(0o640)
        link.symlink_to(real)
        write_table(self.FRAME, link)
        assert link.is_symlink()
        assert real.read_text().startswith(HEADER)
        assert stat.S_IMODE(real.stat().st_mode) == 0o640

    def test_refused(self, tmp_path: Path) -> None:
        (tmp_path / "folder.csv").mkdir()
        for name, said in (
            ("out.xlsx", r"end the name with \.csv or \.parquet"),
            ("out", r"end the name with \.csv or \.parquet"),
            ("folder.csv", r"is a folder"),
            ("none/out.csv", r"cannot be written: No such file"),
        ):
            with pytest.raises(InputError, match=said):
                write_table(self.FRAME, tmp_path / name)
        with pytest.raises(InputError, match=r"end the name"):
            write_table(self.FRAME, os.devnull)

    def test_mixed_types_are_refused_for_parquet_only(self, tmp_path: Path) -> None:
        mixed = pd.DataFrame({"gpu": ["t4", 3.5]}, dtype=object)
        write_table(mixed, tmp_path / "out.csv")
        with pytest.raises(InputError, match=r"write CSV instead"):
            write_table(mixed, tmp_path / "out.parquet")
        assert not (tmp_path / "out.parquet").exists()
