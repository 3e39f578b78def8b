"""The workloads of the steps table, in its order."""

from benchmarks.workloads import (
    elementwise,
    logistic,
    lstm,
    mlp_deep,
    mlp_tiny,
    mlp_wide,
    rosenbrock,
    scans,
    sines,
    softmax,
    transformer,
)

ALL = {
    workload.name: workload
    for workload in (
        mlp_tiny.WORKLOAD,
        mlp_deep.WORKLOAD,
        mlp_wide.SGD,
        mlp_wide.ADAM,
        logistic.WORKLOAD,
        elementwise.WORKLOAD,
        softmax.WORKLOAD,
        rosenbrock.WORKLOAD,
        sines.WORKLOAD,
        transformer.WORKLOAD,
        lstm.WORKLOAD,
        scans.CARRIED,
        scans.MAPPED,
    )
}
