"""W&B sweep files, run on this machine from one prefill per prompt."""
