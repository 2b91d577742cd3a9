"""Federated averaging, made real.

Ten ideas: Task, FederatedData, Algorithm, Optimizer, Metric, Update and Sum, Stage and Codec, Sampler, Fleet, Plan.

>>> import fedavg
>>> plan = fedavg.Plan(task="mnist-2nn", data="mnist", C=0.02, rounds=1, workers=1)
>>> fedavg.run(plan).summary.rounds
1
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedavg.adapters import Adapters, LoRA
    from fedavg.algorithms import (
        Adaptive,
        Algorithm,
        FedAdagrad,
        FedAdam,
        FedAvg,
        FedAvgM,
        FedBuff,
        FedDyn,
        FedNova,
        FedProx,
        FedSGD,
        FedYogi,
        OneShot,
        PlanOptions,
        PooledSGD,
        Scaffold,
    )
    from fedavg.attacks import (
        Attack,
        Backdoor,
        FreeRider,
        Gaussian,
        Infinities,
        InnerProduct,
        LabelFlip,
        LittleIsEnough,
        Mimic,
        MinMax,
        NaNs,
        OptimalInnerProduct,
        OptimalLittleIsEnough,
        Scaled,
        SignFlip,
        View,
    )
    from fedavg.client import Client
    from fedavg.codecs import STC, BFloat16, Codec, Entropy, Float16, Float32, LowRank, Mask, Quantise, TopK
    from fedavg.data import ArrayData, HeldOut, Partition, load
    from fedavg.data.own import from_arrays, from_clients, from_dataset, from_folder, from_huggingface, from_table
    from fedavg.data.partition import IID, Dirichlet, Labels, Natural, Shards, Unbalanced
    from fedavg.errors import DataError, DiskError, Diverged, FedAvgError, FleetError, PlanError, RunDirError, TaskError
    from fedavg.fleets import Fleet, LocalFleet, RayFleet
    from fedavg.fleets.http.device.connection import Connection
    from fedavg.fleets.http.device.policy import Policy
    from fedavg.metrics import (
        AUC,
        MAE,
        RMSE,
        Accuracy,
        ClassAccuracy,
        Loss,
        MacroF1,
        Mean,
        Measure,
        Metric,
        Perplexity,
        TopKAccuracy,
    )
    from fedavg.optimizers import SGD, Adam, AdamW, Correction, Optimizer
    from fedavg.plan import Plan
    from fedavg.plan.rates import Constant, Cosine, Exponential, Rate, Step
    from fedavg.programs.device import Device
    from fedavg.ragged import Ragged
    from fedavg.robust import (
        AdaptiveClipping,
        Bucketing,
        Case,
        CentredClipping,
        DnC,
        GeometricMedian,
        Krum,
        MeanAroundMedian,
        Median,
        MinimumDiameter,
        MultiKrum,
        NearestNeighbourMixing,
        NormBound,
        PreAggregator,
        Reducer,
        Rows,
        StaticClipping,
        TrimmedMean,
    )
    from fedavg.runlog.stopping import Patience
    from fedavg.runner import Result, resume, run
    from fedavg.samplers import Corrected, InTurns, Oort, Poisson, Pool, PowerOfChoice, Sampler, Uniform, Weighted
    from fedavg.server import Event, Round, Start, train
    from fedavg.stages import Clip, LocalDP, Noise, Stage, Weigh
    from fedavg.study.compare import runs
    from fedavg.study.evaluate import Judgement, evaluate
    from fedavg.study.export_model import ExportedModel, export_model
    from fedavg.study.personalise import Personalised, personalise
    from fedavg.study.sweep import SweepResult, sweep
    from fedavg.tasks import Task
    from fedavg.tasks.padding import padded
    from fedavg.types import Cohort, Examples, FederatedData, Part, Schedule, State, Sum, Update, Work
    from fedavg.world import (
        Alike,
        Always,
        Closing,
        Deadline,
        Devices,
        Diurnal,
        Everyone,
        LogNormal,
        Markov,
        Quorum,
        Rates,
        Traced,
        World,
    )

#: Where the public names live: they are imported on first use, so that `fedavg --help` need not wait for PyTorch.
_HOMES = {
    "fedavg.adapters": ["Adapters", "LoRA"],
    "fedavg.algorithms": [
        "Adaptive",
        "Algorithm",
        "FedAdagrad",
        "FedAdam",
        "FedAvg",
        "FedAvgM",
        "FedBuff",
        "FedDyn",
        "FedNova",
        "FedProx",
        "FedSGD",
        "FedYogi",
        "OneShot",
        "PlanOptions",
        "PooledSGD",
        "Scaffold",
    ],
    "fedavg.attacks": [
        "Attack",
        "Backdoor",
        "FreeRider",
        "Gaussian",
        "Infinities",
        "InnerProduct",
        "LabelFlip",
        "LittleIsEnough",
        "Mimic",
        "MinMax",
        "NaNs",
        "OptimalInnerProduct",
        "OptimalLittleIsEnough",
        "Scaled",
        "SignFlip",
        "View",
    ],
    "fedavg.client": ["Client"],
    "fedavg.codecs": [
        "STC",
        "BFloat16",
        "Codec",
        "Entropy",
        "Float16",
        "Float32",
        "LowRank",
        "Mask",
        "Quantise",
        "TopK",
    ],
    "fedavg.data": ["ArrayData", "HeldOut", "Partition", "load"],
    "fedavg.data.own": [
        "from_arrays", "from_clients", "from_dataset", "from_folder", "from_huggingface", "from_table",
    ],
    "fedavg.data.partition": ["IID", "Dirichlet", "Labels", "Natural", "Shards", "Unbalanced"],
    "fedavg.errors": [
        "DataError",
        "DiskError",
        "Diverged",
        "FedAvgError",
        "FleetError",
        "PlanError",
        "RunDirError",
        "TaskError",
    ],
    "fedavg.fleets": ["Fleet", "LocalFleet", "RayFleet"],
    "fedavg.fleets.http.device.connection": ["Connection"],
    "fedavg.fleets.http.device.policy": ["Policy"],
    "fedavg.metrics": [
        "AUC",
        "MAE",
        "RMSE",
        "Accuracy",
        "ClassAccuracy",
        "Loss",
        "MacroF1",
        "Mean",
        "Measure",
        "Metric",
        "Perplexity",
        "TopKAccuracy",
    ],
    "fedavg.optimizers": ["SGD", "Adam", "AdamW", "Correction", "Optimizer"],
    "fedavg.plan": ["Plan"],
    "fedavg.programs.device": ["Device"],
    "fedavg.ragged": ["Ragged"],
    "fedavg.plan.rates": ["Constant", "Cosine", "Exponential", "Rate", "Step"],
    "fedavg.runlog.stopping": ["Patience"],
    "fedavg.robust": [
        "AdaptiveClipping",
        "Bucketing",
        "Case",
        "CentredClipping",
        "DnC",
        "GeometricMedian",
        "Krum",
        "MeanAroundMedian",
        "Median",
        "MinimumDiameter",
        "MultiKrum",
        "NearestNeighbourMixing",
        "NormBound",
        "PreAggregator",
        "Reducer",
        "Rows",
        "StaticClipping",
        "TrimmedMean",
    ],
    "fedavg.runner": ["Result", "resume", "run"],
    "fedavg.samplers": [
        "Corrected", "InTurns", "Oort", "Poisson", "Pool", "PowerOfChoice", "Sampler", "Uniform", "Weighted",
    ],
    "fedavg.server": ["Event", "Round", "Start", "train"],
    "fedavg.stages": ["Clip", "LocalDP", "Noise", "Stage", "Weigh"],
    "fedavg.study.compare": ["runs"],
    "fedavg.study.evaluate": ["Judgement", "evaluate"],
    "fedavg.study.export_model": ["ExportedModel", "export_model"],
    "fedavg.study.personalise": ["Personalised", "personalise"],
    "fedavg.study.sweep": ["SweepResult", "sweep"],
    "fedavg.tasks": ["Task"],
    "fedavg.tasks.padding": ["padded"],
    "fedavg.types": ["Cohort", "Examples", "FederatedData", "Part", "Schedule", "State", "Sum", "Update", "Work"],
    "fedavg.world": [
        "Alike", "Always", "Closing", "Deadline", "Devices", "Diurnal", "Everyone", "LogNormal", "Markov", "Quorum",
        "Rates", "Traced", "World",
    ],
}  # fmt: skip

__all__ = [
    "AUC", "IID", "MAE", "RMSE", "SGD", "STC", "Accuracy", "Adam", "AdamW", "Adapters", "Adaptive", "AdaptiveClipping",
    "Algorithm", "Alike", "Always", "ArrayData", "Attack", "BFloat16", "Backdoor", "Bucketing", "Case",
    "CentredClipping", "ClassAccuracy", "Client", "Clip", "Closing", "Codec", "Cohort", "Connection", "Constant",
    "Corrected", "Correction", "Cosine", "DataError", "Deadline", "Device", "Devices", "Dirichlet", "DiskError",
    "Diurnal", "Diverged", "DnC", "Entropy", "Event", "Everyone", "Examples", "Exponential", "ExportedModel",
    "FedAdagrad", "FedAdam", "FedAvg", "FedAvgError", "FedAvgM", "FedBuff", "FedDyn", "FedNova", "FedProx",
    "FedSGD", "FedYogi", "FederatedData", "Fleet", "FleetError", "Float16", "Float32", "FreeRider", "Gaussian",
    "GeometricMedian", "HeldOut", "InTurns", "Infinities", "InnerProduct", "Judgement", "Krum", "LabelFlip", "Labels",
    "LittleIsEnough", "LoRA", "LocalDP", "LocalFleet", "LogNormal", "Loss", "LowRank", "MacroF1", "Markov", "Mask",
    "Mean", "MeanAroundMedian", "Measure", "Median", "Metric", "Mimic", "MinMax", "MinimumDiameter", "MultiKrum",
    "NaNs", "Natural", "NearestNeighbourMixing", "Noise", "NormBound", "OneShot", "Oort", "OptimalInnerProduct",
    "OptimalLittleIsEnough", "Optimizer", "Part", "Partition", "Patience", "Perplexity", "Personalised", "Plan",
    "PlanError", "PlanOptions", "Poisson", "Policy", "Pool", "PooledSGD", "PowerOfChoice", "PreAggregator",
    "Quantise", "Quorum", "Ragged", "Rate", "Rates", "RayFleet", "Reducer", "Result", "Round", "Rows", "RunDirError",
    "Sampler", "Scaffold", "Scaled", "Schedule", "Shards", "SignFlip", "Stage", "Start", "State", "StaticClipping",
    "Step", "Sum", "SweepResult", "Task", "TaskError", "TopK", "TopKAccuracy", "Traced", "TrimmedMean", "Unbalanced",
    "Uniform", "Update", "View", "Weigh", "Weighted", "Work", "World", "evaluate", "export_model", "from_arrays",
    "from_clients", "from_dataset", "from_folder", "from_huggingface", "from_table", "load", "padded",
    "personalise", "resume", "run", "runs", "sweep", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(import_module(module), name)
            return globals()[name]
    raise AttributeError(f"module 'fedavg' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
