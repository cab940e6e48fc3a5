-- compatible from 007
-- Composition: jobs that start after another job, and graphs that are sent without a job.
set local search_path to bellringer;

-- The cause of a run that was created because a run of another job ended. A new value cannot be used in the transaction
-- that adds it, so no index or constraint here may name it.
alter type cause add value if not exists 'after';

-- {"job": name of the upstream job, "on": "success" | "failure" | "any"}; null: the job starts after no other.
alter table jobs add column after jsonb;
alter table jobs alter after set statistics 0;
-- contract: only the function terms_of uses this type, and it is replaced together with it; no program passes it
alter type job_terms add attribute after jsonb;

-- One row for each job that starts after another, written by `register` from jobs.after. Every settle asks whether this
-- table has rows, so it is small and separate from `jobs`. Upstream jobs are found by name: an upstream job that is
-- deleted and created again keeps its followers.
create table job_followers (
  job_id       uuid primary key,
  tenant_id    integer not null,
  upstream_key text not null,                   -- name_key of the upstream job
  outcome      text not null check (outcome in ('success', 'failure', 'any'))
);
create index job_followers_upstream on job_followers (tenant_id, upstream_key);
alter table job_followers enable row level security;
create policy tenant_rows on job_followers using (tenant_id = (select current_tenant()));

-- Of a graph that was sent without a job: it is deleted when this time has passed and no run uses it. Null: the graph
-- belongs to a job, and is kept.
alter table graphs add column keep_until timestamptz;
create index graphs_ad_hoc on graphs (keep_until) where keep_until is not null;
