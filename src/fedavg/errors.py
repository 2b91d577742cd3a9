"""One small tree of errors. A message says what was got, what was expected, and what to do."""


class FedAvgError(Exception):
    """A mistake that a user can fix; the command line prints it without a traceback and exits with 2.

    >>> issubclass(FedAvgError, Exception)
    True
    """

    #: Whether it was logged already.
    told = False


class PlanError(FedAvgError):
    """The plan asks for something impossible; raised before round 1.

    >>> import fedavg
    >>> try:
    ...     fedavg.Plan(C=2)
    ... except PlanError as error:
    ...     print(error)
    C: got 2; expected a number from 0 to 1
    """


class DataError(FedAvgError):
    """A data set is missing, corrupt or does not fit the plan.

    >>> from fedavg import FedAvgError
    >>> issubclass(DataError, FedAvgError)
    True
    """


class NotFinite(DataError):
    """A vector that was received holds NaN or infinity."""


class TaskError(FedAvgError):
    """A user's module, loss or metric cannot be trained as given.

    >>> from fedavg import FedAvgError
    >>> issubclass(TaskError, FedAvgError)
    True
    """


class RunDirError(FedAvgError):
    """A run directory is not what the command expects.

    >>> from fedavg import FedAvgError
    >>> issubclass(RunDirError, FedAvgError)
    True
    """


class DiskError(FedAvgError):
    """A file could not be written; what was there before is intact.

    >>> from fedavg import FedAvgError
    >>> issubclass(DiskError, FedAvgError)
    True
    """


class FleetError(FedAvgError):
    """The workers could not do the work of a round.

    >>> from fedavg import FedAvgError
    >>> issubclass(FleetError, FedAvgError)
    True
    """


class Diverged(FedAvgError):
    """Training produced values that are not finite; the last good model has been kept.

    >>> from fedavg import FedAvgError
    >>> issubclass(Diverged, FedAvgError)
    True
    """
