#!/bin/bash
#SBATCH --job-name=railyard-check
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=00:10:00
# An all-reduce between the nodes of the allocation through the plugin, on host memory, every byte
# checked. A training job needs only the lines up to "settings end" and its own srun.
#
# Of the cluster it needs: the plugin in /usr/local of each node (else change the paths below),
# and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf, so that a node's own limit counts.
set -eu

# A batch script runs as a copy, so a file beside it is found from where the job was submitted.
set -a
# shellcheck source=deploy/job.env
. "${JOB_ENV:-$SLURM_SUBMIT_DIR/job.env}"
set +a
export LD_LIBRARY_PATH=/usr/local/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$PATH:/usr/local/sbin
ulimit -l unlimited 2>/dev/null || echo "memlock is $(export PATH=$PATH:/usr/local/sbin
ulimit -l) KiB on this node" >&2
# settings end

root=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# The ranks meet at the first node. Each gets its number from srun, so it is expanded there.
# shellcheck disable=SC2016
srun --export=ALL bash -c 'exec railyard bench allreduce --plugin railyard \
	--rank "$SLURM_PROCID" --ranks "$SLURM_NTASKS" --meet "$0:29511"' "$root"
