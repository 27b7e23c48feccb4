"""The state of a GPU as NVML shows it to the parent, without opening the GPU: clocks, power, temperature, memory."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cache
from statistics import fmean
from typing import Any, Final, NamedTuple, Self

import msgspec

from tputfind.record.record import Health

_PERIOD_S: Final = 0.05
"""Seconds between readings; a reading takes some 0.1 ms. Slow values, such as the energy counter (4 to 20 ms on an
H100), are read only at the two ends of a window; the instantaneous power takes 0.03 ms."""
_LEAST_POWER_S: Final = 0.3
"""Minimum window for a power figure, in seconds. On an H100 power and energy change in steps of 100 ms, and the first
readings do not count."""
_POWER_LAGS_S: Final = 0.15
"""Maximum age of an instantaneous power reading, in seconds: after a pause, the first two or three readings of a window
still show the pause. EfficientNet-B0 at batch 2048 on an H100 read 425 W over 0.42 s with them, and 525 W by the
counter over 4 s."""
_LONG_S: Final = 2.0
"""Minimum window for the energy counter, in seconds: its step is then small. The counter covers the whole window, even
if steps of 0.1 s and readings every 0.1 s are in phase."""
_POWER_OF_THE_MOMENT: Final = 186
"""NVML_FI_DEV_POWER_INSTANT, in mW."""

_CORE_WORDS, _BITS_OF_WORD = 64, 64
"""NVML returns cores as the bits of 64-bit words: up to 4096 cores."""

_REASONS: Final = {
    "power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "sync_boost": 0x10,
    "software_thermal": 0x20,
    "hardware_thermal": 0x40,
    "power_brake": 0x80,
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that slow the device; idling and clocks set by a user do not count."""
_COUNTERS: Final = {
    "power_cap": 74,
    "sync_boost": 76,
    "software_thermal": 269,
    "hardware_thermal": 270,
    "power_brake": 271,
}
"""Field values (NVML_FI_DEV_CLOCKS_EVENT_REASON_*): nanoseconds during which each reason throttled the clocks."""


def memory_in_use_bytes(*device_uuids: str | None) -> int | None:
    """Return the bytes of memory that processes hold on the fullest of these GPUs, without the driver's own memory.

    Between two children of ours, all of it belongs to other processes. Returns None if NVML or a GPU is missing (a uuid
    of None is no GPU), or if the driver is too old.
    """
    if None in device_uuids:
        return None
    try:
        opened = map(_open_device, filter(None, device_uuids))
        return max(int(nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2).used) for nvml, card in opened)
    except Exception:  # ImportError, or any NVML error if driver, library or GPU are not as it expects
        return None


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a GPU; values that the GPU does not report are None. Times are of the host's monotonic clock."""

    at_s: float
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    reasons: int | None = None
    power_mw: int | None = None
    energy_mj: int | None = None
    slowed_ns: dict[str, int] = {}


class Ends(NamedTuple):
    """The thorough readings at the two ends of a window."""

    begin: Reading
    end: Reading


def summarise(ends: Ends, within: Sequence[Reading], sm_clock_max_mhz: int | None) -> Health:
    """Return the health of a device over a window; the readings ``within`` it lie between its ``ends``."""
    begin, end = ends
    seconds = end.at_s - begin.at_s
    looks = [begin, *within]  # the end is left out: the device idles by then
    clocks = [look.sm_clock_mhz for look in looks if look.sm_clock_mhz is not None]
    temperatures = [look.temperature_c for look in (*looks, end) if look.temperature_c is not None]
    return Health(
        readings=len(looks),
        sm_clock_mhz=fmean(clocks) if clocks else None,
        sm_clock_max_mhz=sm_clock_max_mhz,
        power_w=_power_w(ends, within) if seconds >= _LEAST_POWER_S else None,
        temperature_c=max(temperatures, default=None),
        slowed=_throttled_shares(ends, looks, seconds),
    )


def _power_w(ends: Ends, within: Sequence[Reading]) -> float | None:
    """Return the mean power in watts, from the instantaneous readings of a short window or the counter of a long one.

    Instantaneous readings of the first ``_POWER_LAGS_S`` are left out. They also serve a long window without a counter.
    The counter, whose step of up to 0.1 s is large for a short window, serves one only without such readings.
    """
    begin, end = ends
    told = [(look.at_s, look.power_mw) for look in within if look.power_mw is not None]
    energy_mj = 0 if begin.energy_mj is None or end.energy_mj is None else end.energy_mj - begin.energy_mj
    if energy_mj <= 0 or (told and end.at_s - begin.at_s < _LONG_S):  # a counter may stand still
        of_window = [power_mw for at_s, power_mw in told if at_s - begin.at_s >= _POWER_LAGS_S]
        return fmean(of_window) / 1000 if of_window else None
    return energy_mj / 1000 / (end.at_s - begin.at_s)


def _throttled_shares(ends: Ends, looks: Sequence[Reading], seconds: float) -> dict[str, float]:
    """Return the fraction of the window during which each reason throttled the clocks; reasons with 0 are left out."""
    told = [look.reasons for look in looks if look.reasons is not None]
    shares = {name: fmean(bool(reasons & bit) for reasons in told) for name, bit in _REASONS.items()} if told else {}
    for name, after_ns in ends.end.slowed_ns.items():
        before_ns = ends.begin.slowed_ns.get(name)
        if before_ns is not None and seconds > 0:
            # The counters rise in coarse steps, and the readings miss short events: the larger value counts.
            counted = min(1.0, max(0.0, (after_ns - before_ns) / 1e9 / seconds))
            shares[name] = max(shares.get(name, 0.0), counted)
    return {name: share for name, share in shares.items() if share > 0}


class Watch:
    """Reads a GPU's state in a thread while children work, if there is a GPU and NVML.

    Use it as a context manager. The thread sleeps between readings and reads only fast values.
    """

    def __init__(self, device_uuid: str | None) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        if device_uuid is not None:
            try:
                self._nvml, self._handle = _open_device(device_uuid)
            except Exception:  # as above
                self._nvml = None
        self._within: list[Reading] = []
        self._begin: Reading | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        if self._nvml is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def begin(self) -> None:
        if self._nvml is not None:
            self._within = []
            self._begin = self._reading(thorough=True)

    def end(self) -> Health | None:
        """Return the device's health since ``begin``; None if the device reports neither clocks nor energy."""
        begin, within, self._begin = self._begin, self._within, None
        if begin is None:
            return None
        end = self._reading(thorough=True)
        if begin.sm_clock_mhz is None and begin.energy_mj is None:
            return None
        return summarise(Ends(begin, end), within, self._ask("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_SM))

    def _read(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            if self._begin is not None:
                self._within.append(self._reading())

    def _reading(self, *, thorough: bool = False) -> Reading:
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name on older drivers
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Reading(
            at_s=time.monotonic(),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            temperature_c=self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU),
            reasons=reasons,
            power_mw=self._field(_POWER_OF_THE_MOMENT),
            energy_mj=self._ask("nvmlDeviceGetTotalEnergyConsumption") if thorough else None,
            slowed_ns=self._slowed_ns() if thorough else {},
        )

    def _field(self, number: int) -> int | None:
        values = self._fields([number])
        return int(values[0].value.uiVal) if values and values[0].nvmlReturn == 0 else None

    def _slowed_ns(self) -> dict[str, int]:
        pairs = zip(_COUNTERS, self._fields(list(_COUNTERS.values())), strict=False)
        return {name: int(value.value.ullVal) for name, value in pairs if value.nvmlReturn == 0}

    def _fields(self, numbers: list[int]) -> Sequence[Any]:
        return self._query(lambda nvml: nvml.nvmlDeviceGetFieldValues(self._handle, numbers)) or ()

    def _ask(self, function: str, *arguments: object) -> int | None:
        value = self._query(lambda nvml: getattr(nvml, function)(self._handle, *arguments))
        return None if value is None else int(value)

    def _query(self, ask: Callable[[Any], Any]) -> Any:
        """Return NVML's answer, or None: each device, driver and virtual machine leaves some values unsupported."""
        try:
            return ask(self._nvml)
        except Exception:  # NVMLError of any kind, or a function that this version does not have
            return None


class Watches(ExitStack):
    """Reads the state of the devices of all ranks, as ``Watch`` does of one."""

    def __init__(self, device_uuids: Iterable[str | None]) -> None:
        super().__init__()
        self._watches = [self.enter_context(Watch(uuid)) for uuid in device_uuids]

    def begin(self) -> None:
        for watch in self._watches:
            watch.begin()

    def end(self) -> Health | None:
        """Return the health since ``begin`` of the device that sets the pace; None if no device reports its own."""
        return slowest([health for watch in self._watches if (health := watch.end()) is not None])


def slowest(devices: Sequence[Health]) -> Health | None:
    """Return the health of the device with the lowest clock, by its own maximum: the ranks of a job wait for it."""

    def clock_share(one: Health) -> float:
        return one.sm_clock_mhz / one.sm_clock_max_mhz if one.sm_clock_mhz and one.sm_clock_max_mhz else 1.0

    return min(devices, key=clock_share, default=None)


@cache
def _open_device(device_uuid: str) -> tuple[Any, Any]:
    import pynvml

    pynvml.nvmlInit()
    try:
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(device_uuid)
    except pynvml.NVMLError:
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(device_uuid.replace("GPU-", "MIG-"))


def cores_near(device_uuid: str | None) -> frozenset[int]:
    """Return the host cores that are closest to a GPU; an empty set if NVML does not know them."""
    if device_uuid is None:
        return frozenset()
    try:
        nvml, handle = _open_device(device_uuid)
        words = nvml.nvmlDeviceGetCpuAffinity(handle, _CORE_WORDS)
    except Exception:  # as above
        return frozenset()
    bits = _BITS_OF_WORD
    return frozenset(bits * place + bit for place, word in enumerate(words) for bit in range(bits) if word >> bit & 1)
