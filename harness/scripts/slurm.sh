#!/bin/bash
# A workload on several nodes of a SLURM cluster, from the root of a checkout on a file system that all nodes share:
#   sbatch --partition=gpu harness/scripts/slurm.sh lora-8b --devices 16
# `tunemark plan lora-8b --accelerator NAME --devices 16 --set nodes=2` shows the plan for these machines beforehand.
# Nodes without internet access: `HF_HUB_OFFLINE=1 sbatch ...` reads weights and data from local folders only.
#SBATCH --job-name=tunemark
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.log

set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
export TUNEMARK="${TUNEMARK:-.venv/bin/tunemark}"
HEAD_NODE="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"
export HEAD_NODE
# Each node runs this once, on all of its CPUs: some clusters would give the one task a single core. The first writes the submission.
# shellcheck disable=SC2016
srun --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" --kill-on-bad-exit=1 bash -c \
  'exec "$TUNEMARK" run "$@" --set "nodes=$SLURM_NNODES" --set "node_rank=$SLURM_NODEID" --set "rendezvous=$HEAD_NODE:29500"' bash "$@"
