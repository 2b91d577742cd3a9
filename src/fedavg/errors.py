"""One small tree of errors. A message says what was got, what was expected, and what to do."""


class FedAvgError(Exception):
    """A mistake that a user can mend; the command line prints it without a traceback and exits with 2."""


class PlanError(FedAvgError):
    """The plan asks for something impossible; raised before round 1."""


class DataError(FedAvgError):
    """A data set is missing, corrupt or does not fit the plan."""


class NotFinite(DataError):
    """A vector that was received holds NaN or infinity."""


class TaskError(FedAvgError):
    """A user's module, loss or metric can not be trained as given."""


class RunDirError(FedAvgError):
    """A run directory is not what the command expects."""


class DiskError(FedAvgError):
    """A file could not be written; what was there before is still whole."""


class FleetError(FedAvgError):
    """The workers could not do the work of a round."""


class Diverged(FedAvgError):
    """Training produced values that are not finite; the last good model has been kept."""
