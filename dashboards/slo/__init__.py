"""Service levels of inference jobs (HLT-10): latency against its objective, requests and replicas wanted, by queries of their own."""
