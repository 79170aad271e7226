"""Access to the JVM through py4j: collections in both directions, and callbacks into Python.

Java's method handles, used as Java lambdas, so that Java calls Java without a call into Python.
"""

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from lethe.process import return_memory
from py4j.java_gateway import JavaClass, JavaMember, JavaPackage
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

HANDLES_KEPT: Final = 64
"""Classes and methods that are looked up once. A look-up asks the JVM about all methods of a class."""
FEW_MANIFESTS: Final = 8
"""At most so many manifests are read and written one after the other, by `calling_thread`. On a store with 20 ms per request, it
takes as long as side by side.
"""
GATEWAYS_KEPT: Final = 4
"""Gateways whose names of classes are kept. A process has one."""


def gateway(spark: SparkSession) -> Any:
    """The gateway of a session.

    Raises:
        RuntimeError: It has none.
    """
    gateway = spark.sparkContext._gateway
    if gateway is None:
        raise RuntimeError("this Spark session has no JVM (Spark Connect); Lethe needs a classic driver")
    return gateway


def jvm(spark: SparkSession) -> Any:
    """The view of a session's JVM, whose attributes are Java's packages and classes.

    Raises:
        RuntimeError: The session has no JVM (Spark Connect).
    """
    return names_of(gateway(spark))


class JavaNames:
    """Java's packages and classes as attributes. Each is looked up once: py4j itself asks the JVM at each mention."""

    def __init__(self, names: Any) -> None:
        self._names = names

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._names, name)
        if isinstance(value, JavaPackage):
            value = JavaNames(value)
        setattr(self, name, value)
        return value


@lru_cache(GATEWAYS_KEPT)
def names_of(gateway: Any) -> JavaNames:
    """Java's packages and classes, as a gateway sees them."""
    return JavaNames(gateway.jvm)


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether a class is in the class path of a session."""
    package = gateway(spark).jvm  # not by names that are kept: a jar may be added later
    for part in name.split("."):
        package = getattr(package, part)  # a package, until the last part
    return isinstance(package, JavaClass)


def listen_for_callbacks(gateway: Any) -> None:
    """Allow Java to call Python objects. Listens on a port of the loopback address. Safe to repeat."""
    ensure_callback_server_started(gateway)


def activate(session: SparkSession) -> None:
    """Make this the active session of the JVM's thread, which Iceberg and Spark use where they are not given one."""
    jvm(session).org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


def is_jvm_alive(session: SparkSession, within_seconds: float = 0.0) -> bool:
    """Whether the JVM runs. After a failed call it may need some time to end."""
    try:
        gateway(session).proc.wait(within_seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def delete_shuffles(session: SparkSession) -> None:
    """Delete the local files of all shuffles, which contain rows. No job of the session may be running.

    Spark deletes the files of a shuffle some time after its objects have been collected as garbage, or never.

    Raises:
        JvmError: Java refused it.
    """
    tracker = jvm(session).org.apache.spark.SparkEnv.get().mapOutputTracker()
    cleaner = session.sparkContext._jsc.sc().cleaner().get()
    shuffles = tracker.shuffleStatuses().keysIterator().toList()
    for number in range(shuffles.size()):
        cleaner.doCleanupShuffle(shuffles.apply(number), True)


def heap_after_collection(session: SparkSession) -> tuple[int, int]:
    """The bytes that the JVM's heap still uses after a garbage collection, and its largest size.

    Raises:
        JvmError: Java refused it.
    """
    return_memory()  # garbage of Python keeps objects of the JVM alive
    lang = jvm(session).java.lang
    lang.System.gc()
    runtime = lang.Runtime.getRuntime()
    return int(runtime.totalMemory()) - int(runtime.freeMemory()), int(runtime.maxMemory())


def java_list(jvm: Any, values: Iterable[Any]) -> Any:
    """A new ArrayList with the values in their order. Costs a call into the JVM for each value."""
    result = jvm.java.util.ArrayList()
    for value in values:
        result.add(value)
    return result


def java_map(jvm: Any, values: Mapping[str, str]) -> Any:
    """A new HashMap with the entries. Costs a call into the JVM for each entry."""
    result = jvm.java.util.HashMap()
    for key, value in values.items():
        result.put(key, value)
    return result


@lru_cache(GATEWAYS_KEPT)
def json_mapper(jvm: Any) -> Any:
    """Iceberg's reader and writer of JSON."""
    return jvm.org.apache.iceberg.util.JsonUtil.mapper()


def as_json(jvm: Any, value: Any) -> str:
    """The JSON of a Java collection, map or text. Costs one call into the JVM, whatever its size."""
    return str(json_mapper(jvm).writeValueAsString(value))


def texts_of(jvm: Any, java_map: Any) -> dict[str, str]:
    """A new dictionary of a Java map of texts."""
    found: dict[str, str] = json.loads(as_json(jvm, java_map))
    return found


def each(iterable: Any) -> Iterator[Any]:
    """The elements of a java.lang.Iterable, over which Python cannot iterate itself."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def each_of(closeable: Any) -> Iterator[Any]:
    """The elements of a CloseableIterable, which is closed at the end."""
    try:
        yield from each(closeable)
    finally:
        closeable.close()


def table_cache(spark: SparkSession) -> Any:
    """Iceberg's registry of tables by name.

    `SparkTableCache.get` is both a static and an instance method, and py4j's attribute look-up may pick either. Naming the static
    member avoids that.
    """
    client = gateway(spark)._gateway_client
    return JavaMember("get", None, "z:org.apache.iceberg.spark.SparkTableCache", client)()


@lru_cache(HANDLES_KEPT)
def method(jvm: Any, class_name: str, name: str, last_parameter: str) -> Any:
    """A handle to the public method of this name whose last parameter has this type."""
    for found in java_class(jvm, class_name).getMethods():
        parameters = list(found.getParameterTypes())
        if found.getName() == name and parameters and parameters[-1].getName() == last_parameter:
            return jvm.java.lang.invoke.MethodHandles.publicLookup().unreflect(found)
    raise RuntimeError(f"this JVM has no {class_name}.{name}(…, {last_parameter})")


@lru_cache(HANDLES_KEPT)
def getter(jvm: Any, class_name: str, name: str) -> Any:
    """A handle to the public method of this name without parameters, with type Object to Object."""
    for found in java_class(jvm, class_name).getMethods():
        if found.getName() == name and not list(found.getParameterTypes()):
            api = jvm.java.lang.invoke
            return api.MethodHandles.publicLookup().unreflect(found).asType(api.MethodType.genericMethodType(1))
    raise RuntimeError(f"this JVM has no {class_name}.{name}()")


def as_interface(jvm: Any, interface: str, handle: Any) -> Any:
    """An object of an interface with one method, which calls the handle."""
    proxies = jvm.java.lang.invoke.MethodHandleProxies
    return proxies.asInterfaceInstance(java_class(jvm, interface), handle)


@lru_cache(HANDLES_KEPT)
def java_class(jvm: Any, name: str) -> Any:
    """The class, loaded by the class loader that has Iceberg's classes."""
    return jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)


@lru_cache(GATEWAYS_KEPT)
def calling_thread(jvm: Any) -> Any:
    """An executor that runs each task in the thread that asks for it.

    Iceberg looks only every 10 ms whether a task in another thread has ended, several times in a commit. So for a few files, one
    thread is faster than several.
    """
    return jvm.org.apache.iceberg.relocated.com.google.common.util.concurrent.MoreExecutors.newDirectExecutorService()
