-- Two endpoints that are there when the example runs: Prometheus itself and reconciler.
INSERT INTO prometheus.scrape_targets (job, address, labels)
VALUES ('prometheus', '127.0.0.1:9090', '{}'), ('reconciler', '127.0.0.1:7433', '{"team": "platform"}')
ON CONFLICT (job, address) DO NOTHING;
