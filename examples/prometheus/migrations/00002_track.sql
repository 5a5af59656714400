-- +goose Up

-- Each enabled row is one file, in the form of Prometheus' file_sd. There is one Prometheus, so the target is a constant.
SELECT reconciler.track(
    'scrape_target', 'prometheus.scrape_targets',
    key     => '{id}',
    target  => $$'prometheus'$$,
    running => 'enabled',
    spec    => $$jsonb_build_array(jsonb_build_object(
                   'targets', jsonb_build_array(address),
                   'labels', labels || jsonb_build_object('job', job)))$$,
    ignore  => '{note}');

-- +goose Down
-- Prometheus goes on scraping what its files say.
SELECT reconciler.untrack('scrape_target', release => 'keep');
