"""Where the published recordings come from, and which part of each is to learn from and which to test on.

Every original is a file of a public repository at one commit, known by its checksum. A copy `<name>.csv` of a
recording has one line of names, the inputs before the outputs, and the same numbers; it has a checksum, too.
"""

from typing import NamedTuple

RUN_IN = 50
"""First samples of a test recording that starts from an unknown state: they find it, and are not scored."""

_GITHUB = "https://raw.githubusercontent.com/"
# A BSD-3-Clause repository; the data have no separate licence.
_RGP = f"{_GITHUB}zhenwendai/RGP/be679607d3457a1038a2fe39b36b816ea380ea39/datasets/system_identification/"
_FARNN = f"{_GITHUB}lakehanne/FARNN/9cfb82f2b42a53a604dba66d0eab23243a9a21ae/data/"
_THESIS = f"{_GITHUB}LMNonlinear/Thesis/56e859389d622d9935a491c9d52b3fe46a941ebf/Chapter6_CaseStudies/"
_SILVERBOX = f"{_GITHUB}biaslab/nsi-silverbox/728f07e4539d4f7da76a4778b52a756260b488ac/data/Silverbox/"
_LPV = (
    f"{_GITHUB}gsmfnc/LPV_SysId/a843d61efb1401308c932bd77b6653446bbdd351"
    "/noise_simulations/lpvcore/wiener_hammerstein/dataset/"
)
_EMPS = f"{_GITHUB}forgi86/sysid-neural-continuous/956aa7ecd73061b0321c6f6098d74c9e4a7ce67a/examples/EMPS/data/"


class Original(NamedTuple):
    """A file as it was published, one recording in it, and the csv copy of that recording."""

    folder: str
    """Address of the file without its name."""
    file: str
    copy: str
    """Name of the csv copy, without its ending."""
    sha256: str
    csv_sha256: str
    length: int
    channels: tuple[str | int, ...]
    """Inputs, then outputs: variables of a .mat file, or columns from 0 of any other."""

    @property
    def url(self) -> str:
        """Address of the published file."""
        return self.folder + self.file


class Rows(NamedTuple):
    """Rows `[start:stop]` of one of the originals, and what they are called as a test."""

    start: int
    stop: int
    original: int = 0
    run_in: int = 0
    name: str = "test"

    @property
    def length(self) -> int:
        """Number of samples."""
        return self.stop - self.start


class Source(NamedTuple):
    """A data set: what it is, who published it, where it is, and its protocol.

    >>> source = SOURCES["gas_furnace"]
    >>> source.input_names, source.output_names, source.length, source.learn.length
    (('gas rate',), ('CO2',), 296, 148)
    """

    name: str
    """What `load` and `benchmark` know it by."""
    description: str
    """The system, in a few words."""
    input_names: tuple[str, ...]
    """dc of them."""
    output_names: tuple[str, ...]
    """dy of them."""
    interval: float | None
    """Seconds between samples, where that is known."""
    citation: str
    """Who published it."""
    originals: tuple[Original, ...]
    """One recording; or one to learn from, and one to test on."""
    learn: Rows
    """Those that published comparisons learn from."""
    tests: tuple[Rows, ...]
    """Those that they test on."""

    @property
    def length(self) -> int:
        """Samples of the recording, or of the one to learn from."""
        return self.originals[0].length

    @property
    def url(self) -> str:
        """Of the original that holds the recording, or the one to learn from."""
        return self.originals[0].url


def _original(folder: str, file: str, copy: str, length: int, channels: tuple[str | int, ...] = (0, 1)) -> Original:
    return Original(folder, file, copy, _SHA256[file], _SHA256[copy], length, channels)


def _source(
    name: str,
    description: str,
    channels: str,
    interval: float | None,
    citation: str,
    *originals: Original,
    parts: tuple[Rows, ...] = (),
) -> Source:
    """A data set with `channels` "input, ... -> output, ..." and `parts`: one to learn from, then those to test on.

    Without `parts`, the first half of a single recording is to learn from and the rest to test on; of two recordings
    the first is to learn from, the second to test on.
    """
    inputs, outputs = (tuple(names.split(", ")) for names in channels.split(" -> "))
    length, half = originals[0].length, originals[0].length // 2
    if not parts and len(originals) == 1:
        parts = Rows(0, half), Rows(half, length)
    elif not parts:
        parts = Rows(0, length), Rows(0, originals[1].length, 1, RUN_IN)
    return Source(name, description, inputs, outputs, interval, citation, originals, parts[0], parts[1:])


def _daisy(number: str) -> str:
    return f"DaISy: database for the identification of systems, KU Leuven, {number}"


_DRIVES = "Wigren and Schoukens, Coupled electric drives data set, Uppsala University, 2017"
_DRIVES_CHANNELS = "motor voltage -> pulley speed"

# Of the originals, by file, and of the csv copies, by name.
_SHA256 = {
    "actuator.mat": "35d1f95176afd856eb4fe0e2f87e3dff39657db8e6fcf7c531078c8f4eb571e4",
    "ballbeam.dat": "e9c48a4f7474953969d4950b4ef72558084b1995f776792ac0cbc80550e6ff42",
    "drive.mat": "47d0825678d854d8a1bbcfb0ad1188026b853f69beb2067ea00cfd88d13dc4ca",
    "dryer.dat": "adcb2f5a1d9e174d08dd49f7f037626745b5e69cbda0bc1e8dca2a7c687d4538",
    "gas_furnace.csv": "ce46e11490a11ac254a959d42d5858f66b3c8013a1b667e553b3d890c67e4d43",
    "dataBenchmark.mat": "cb2f88d4388be4d3f2a24c6402fba804976aac5f2e1f26cda59ea0a38d016eab",
    "DATAUNIF.MAT": "102c8d8012d6e850d50c13227b8c2280fe69f8bc4a845177f8bc3d761d152c89",
    "heating_system.dat": "3bfbe8424719830870b153067eeff40ebff3afb0204c150ed7103b5d6c1908bc",
    "robot_arm.dat": "4ee167a8a28ce0da868d1b42f6a2fe0c456ea0e56b60c70915bf6d4a2a933635",
    "flutter.dat": "e944d4bc32ac403bc20f64e45afff525456dd19166962ebcc47a2cc9f9b39d81",
    "thermic_res_wall.dat": "b9fb76c775ede37958a71d1c584410fc4352e5ac64ca541e0cc926797e1ab7c1",
    "exchanger.dat": "cfb5a447fb573f87de33760e156cbf5da1f9802ae8a03a1b3c39ce8eb656fa6c",
    "tank.mat": "def34c70b239f7d5e9e2228e957a6dfdbb909340941db8f84b23686a17fd3133",
    "winding.dat": "2c81e2760cd2360aa10d6cbd8fbc0c4c83f35dabefaa3e412e974d166413a9af",
    "glassfurnace.dat": "073cc118b7aaf589da46b8472be1767ed5240186a4d00df36bc389326a3f8f35",
    "SNLS80mV.csv": "ae62d5a91230c10f76e6dd02c8a4fac3c9d4d8a95fbf50e87cb0c4885003e0f1",
    "WienerHammerBenchMark.mat": "096e6128687efb664d146d28fc17db4c5a94f247c4b3a2e451319be1efb25ae2",
    "DATA_EMPS.mat": "6cf6814ae14618795da0101aae2bb97ff0c6351b0501b5492751b02b07facf7e",
    "DATA_EMPS_PULSES.mat": "0eab75bb1f6b16228ee78791343a88bf9bfd9a51036ac9807d7b5fc11c0e1704",
    "actuator": "2ba2bc1a1febda3ef7f93da2d014d6da1c70d9d252c890dc2671e3d8cf54af6a",
    "ballbeam": "07c1ba1f2facdf8045a49d368a99f01e3ff261b12acb1fe3c934917bc2753170",
    "drive": "2965f09adba0b12e026a91e9d42aca93c5e9b0e5282cf5553159614eda161fb6",
    "dryer": "2db3cf8e7af01a539b0046e9c1f7c26a72c5ffd3fcd8e5dac142116efdc3b465",
    "gas_furnace": "18879bb98f59a14ce513211d092f3275bfcc960f5c9be95bd104f0cc62884159",
    "cascaded_tanks_train": "c50f3145ab7ff4b5ea7995401fbff3490ca12dc33863c0d314a9407ded141d5f",
    "cascaded_tanks_test": "b63622dd99e00bb685348417377f6a203fd0e38d292febf37f46731faf52c493",
    "coupled_drives_1": "23a3e8ea50cd8be0a74bcd06148e7d12bb107e6c32a42edab66805b46ff7a688",
    "coupled_drives_2": "e06650dba6cb67eb14b254bdf1c0cba12269e4b6c99a3e57d20e7b0fd2e89a96",
    "heating": "49fe2a176b6845f8b7a6eb8fcc96a964fab2f8ae6b67e0e15a287123599cc2d6",
    "robot_arm": "781d988c06d8f6c120985d135a204d290ee7e4f1f4067ad3f3338851b6202cf7",
    "flutter": "e4c9205a8f5d7a3157777604f58d45bf98ed93f744c3a19872f94f7c7bbd27f2",
    "thermic_wall": "da91032b8f286e02c76e002048eed2ff35c7e197967dea6aba26f3b346c4b50c",
    "exchanger": "5e2ae0b844425c738c3c768abdfb1c681bd7661558f958df1b73abf080ea6aad",
    "tank": "ad159eb4ff4ab60a5622be991f8a5bcdaae559e1c5fd932a4b8e8df993d4bdc2",
    "winding": "a30a0c3403ca22e4bac97f865d59b1e61197b01e0e0be51603149c0aeb664d28",
    "glass_furnace": "b8c6023a0e06f557c4eb193243c5dae26a52b9f7d741de1bc5ab0484b8c8fb5b",
    "silverbox": "c91a799b804c38ad7ccf86b051e719fb2f7b430a920ab8f40af13aa36d981b1f",
    "wiener_hammerstein": "de7ff47ae1ba4151f9cf5278f4147c86e556b88e7396583789ad634768998559",
    "emps_train": "966a0d1e3d9ed26186cf0314507ed7a19ca679e397d5bf68ee9309315c21f401",
    "emps_test": "4ba12fcdd5e9b4bade302cf0698ff301628b01019c38da177e3c7f817c9721aa",
}

SOURCES = {
    source.name: source
    for source in (
        # The five of the paper's Table II.
        _source(
            "actuator", "hydraulic actuator of a crane", "valve opening -> oil pressure", None,
            "Sjöberg et al., Nonlinear black-box modeling in system identification, Automatica 31(12), 1995",
            _original(_RGP, "actuator.mat", "actuator", 1024, ("u", "p")),
        ),
        _source(
            "ballbeam", "ball on a beam", "beam angle -> ball position", 0.1, _daisy("96-004"),
            _original(_RGP, "ballbeam.dat", "ballbeam", 1000),
        ),
        _source(
            "drive", "coupled electric drives", _DRIVES_CHANNELS, 0.02, _DRIVES,
            _original(_RGP, "drive.mat", "drive", 500, ("u1", "z1")),
        ),
        _source(
            "dryer", "hair dryer", "heater voltage -> air temperature", 0.08, _daisy("96-006"),
            _original(_RGP, "dryer.dat", "dryer", 1000),
        ),
        _source(
            "gas_furnace", "gas furnace", "gas rate -> CO2", 9.0,
            "Box and Jenkins, Time Series Analysis: Forecasting and Control, 1970, series J",
            _original(_RGP, "gas_furnace.csv", "gas_furnace", 296),
        ),
        # Benchmarks of nonlinear system identification (nonlinearbenchmark.org), with its protocols.
        _source(
            "cascaded_tanks", "two tanks, one above the other, that can overflow", "pump voltage -> water level", 4.0,
            "Schoukens et al., Cascaded tanks benchmark combining soft and hard nonlinearities, Eindhoven, 2016",
            _original(_THESIS, "dataBenchmark.mat", "cascaded_tanks_train", 1024, ("uEst", "yEst")),
            _original(_THESIS, "dataBenchmark.mat", "cascaded_tanks_test", 1024, ("uVal", "yVal")),
        ),
        _source(
            "coupled_drives_1", "coupled electric drives, uniform input, first recording", _DRIVES_CHANNELS,
            0.02, _DRIVES,
            _original(_THESIS, "DATAUNIF.MAT", "coupled_drives_1", 500, ("u11", "z11")),
            parts=(Rows(0, 400), Rows(400, 500)),
        ),
        _source(
            "coupled_drives_2", "coupled electric drives, uniform input, second recording", _DRIVES_CHANNELS,
            0.02, _DRIVES,
            _original(_THESIS, "DATAUNIF.MAT", "coupled_drives_2", 500, ("u12", "z12")),
            parts=(Rows(0, 400), Rows(400, 500)),
        ),
        # Eight more recordings.
        _source(
            "heating", "steel plate heated by a lamp", "lamp voltage -> plate temperature", 2.0, _daisy("99-001"),
            _original(_FARNN, "heating_system.dat", "heating", 801, (1, 2)),
        ),
        _source(
            "robot_arm", "flexible robot arm", "reaction torque -> acceleration", None, _daisy("96-009"),
            _original(_FARNN, "robot_arm.dat", "robot_arm", 1024),
        ),
        _source(
            "flutter", "wing flutter", "excitation -> response", None, _daisy("96-008"),
            _original(_RGP, "flutter.dat", "flutter", 1024),
        ),
        _source(
            "thermic_wall", "heat flow through a wall",
            "temperature on one side, temperature on the other side -> heat flux", None, _daisy("96-011"),
            _original(_FARNN, "thermic_res_wall.dat", "thermic_wall", 1680, (0, 1, 2)),
        ),
        _source(
            "exchanger", "heat exchanger", "flow -> temperature", 1.0, _daisy("97-002"),
            _original(_FARNN, "exchanger.dat", "exchanger", 4000, (1, 2)),
            parts=(Rows(0, 2000), Rows(2000, 3000)),
        ),
        _source(
            "tank", "two tanks in a row", "input -> first tank, second tank", None,
            "Mattos et al., Recurrent Gaussian processes, ICLR 2016: the data of its repository",
            _original(_RGP, "tank.mat", "tank", 2500, ("u", "y")),
        ),
        _source(
            "winding", "industrial winding process",
            "speed of reel 1, speed of reel 2, speed of reel 3, current of motor 1, current of motor 3"
            " -> tension 1, tension 3", 0.1, _daisy("97-003"),
            _original(_FARNN, "winding.dat", "winding", 2500, tuple(range(7))),
        ),
        _source(
            "glass_furnace", "Philips glass furnace",
            "input 1, input 2, input 3"
            " -> temperature 1, temperature 2, temperature 3, temperature 4, temperature 5, temperature 6",
            None, _daisy("96-002"),
            _original(_FARNN, "glassfurnace.dat", "glass_furnace", 1247, tuple(range(1, 10))),
        ),
        # The long ones of nonlinearbenchmark.org.
        _source(
            "silverbox", "electronic circuit with a cubic spring", "input voltage -> output voltage", 1 / 610.35,
            "Wigren and Schoukens, Three free data sets for nonlinear system identification, ECC 2013",
            _original(_SILVERBOX, "SNLS80mV.csv", "silverbox", 131072),
            # Three quarters of the multisine are to learn from. The arrow was recorded before them: its state is
            # unknown, and it goes beyond.
            parts=(
                Rows(40650, 105712), Rows(105712, 127400, name="multisine"), Rows(100, 40575, 0, RUN_IN, "arrow"),
            ),
        ),
        _source(
            "wiener_hammerstein", "electronic circuit: filter, diode, filter", "input voltage -> output voltage",
            1 / 51200, "Schoukens, Suykens and Ljung, Wiener-Hammerstein benchmark, SYSID 2009",
            _original(_LPV, "WienerHammerBenchMark.mat", "wiener_hammerstein", 188000, ("uBenchMark", "yBenchMark")),
            parts=(Rows(5200, 105200), Rows(105200, 184000)),
        ),
        _source(
            "emps", "electro-mechanical positioning system", "motor voltage -> position", 1e-3,
            "Janot, Gautier and Brunot, Data set and reference models of EMPS, 2019",
            _original(_EMPS, "DATA_EMPS.mat", "emps_train", 24841, ("vir", "qm")),
            _original(_EMPS, "DATA_EMPS_PULSES.mat", "emps_test", 24841, ("vir", "qm")),
        ),
    )
}  # fmt: skip
