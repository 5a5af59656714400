-- Three records.
INSERT INTO edge.records (name, type, value)
VALUES ('www.example.org', 'A', '192.0.2.1'), ('www.example.org', 'AAAA', '2001:db8::1'), ('old.example.org', 'CNAME', 'www.example.org')
ON CONFLICT (name, type) DO NOTHING;
