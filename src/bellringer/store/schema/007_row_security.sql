-- Row-level security, the second barrier between tenants. Every statement names its tenant; if one does not, the role
-- that serves tenants still sees only the rows of the tenant that its connection serves (current_tenant()). The owner
-- of the tables (schedulers, workers, migrations) bypasses the policies, and so do `security definer` functions; those
-- compare the tenant that they are given with the tenant of the connection (assert_tenant()).
set local search_path to bellringer;

-- Lists of a tenant use the index on tenant_id, so the policy names the column as it is.
alter table api_keys enable row level security;
create policy tenant_rows on api_keys using (tenant_id = (select current_tenant()));
alter table audit enable row level security;
create policy tenant_rows on audit using (tenant_id = (select current_tenant()));
alter table backfills enable row level security;
create policy tenant_rows on backfills using (tenant_id = (select current_tenant()));
alter table breakers enable row level security;
create policy tenant_rows on breakers using (tenant_id = (select current_tenant()));
alter table calendars enable row level security;
create policy tenant_rows on calendars using (tenant_id = (select current_tenant()));
alter table cohort_sizes enable row level security;
create policy tenant_rows on cohort_sizes using (tenant_id = (select current_tenant()));
alter table dead_letters enable row level security;
create policy tenant_rows on dead_letters using (tenant_id = (select current_tenant()));
alter table deliveries enable row level security;
create policy tenant_rows on deliveries using (tenant_id = (select current_tenant()));
alter table events enable row level security;
create policy tenant_rows on events using (tenant_id = (select current_tenant()));
alter table flows enable row level security;
create policy tenant_rows on flows using (tenant_id = (select current_tenant()));
alter table freezes enable row level security;
create policy tenant_rows on freezes using (tenant_id = (select current_tenant()));
alter table idempotency_keys enable row level security;
create policy tenant_rows on idempotency_keys using (tenant_id = (select current_tenant()));
alter table job_counts enable row level security;
create policy tenant_rows on job_counts using (tenant_id = (select current_tenant()));
alter table jobs enable row level security;
create policy tenant_rows on jobs using (tenant_id = (select current_tenant()));
alter table members enable row level security;
create policy tenant_rows on members using (tenant_id = (select current_tenant()));
alter table operations enable row level security;
create policy tenant_rows on operations using (tenant_id = (select current_tenant()));
alter table secrets enable row level security;
create policy tenant_rows on secrets using (tenant_id = (select current_tenant()));
alter table send_keys enable row level security;
create policy tenant_rows on send_keys using (tenant_id = (select current_tenant()));
alter table skips enable row level security;
create policy tenant_rows on skips using (tenant_id = (select current_tenant()));
alter table tenants enable row level security;
create policy tenant_rows on tenants using (tenant_id = (select current_tenant()));
alter table troubles enable row level security;
create policy tenant_rows on troubles using (tenant_id = (select current_tenant()));
alter table unknown_tasks enable row level security;
create policy tenant_rows on unknown_tasks using (tenant_id = (select current_tenant()));
alter table usage enable row level security;
create policy tenant_rows on usage using (tenant_id = (select current_tenant()));
alter table webhook_endpoints enable row level security;
create policy tenant_rows on webhook_endpoints using (tenant_id = (select current_tenant()));

-- These rows are found by their keys, and are listed by functions that bypass the policy or by statements that name the
-- tenant. `+ 0` keeps the policy a filter: otherwise, on a day without statistics, the planner reads all rows of a
-- tenant by its index.
alter table attempts enable row level security;
create policy tenant_rows on attempts using (tenant_id + 0 = (select current_tenant()));
alter table graphs enable row level security;
create policy tenant_rows on graphs using (tenant_id + 0 = (select current_tenant()));
alter table limits enable row level security;
create policy tenant_rows on limits using (tenant_id + 0 = (select current_tenant()));
alter table queue enable row level security;
create policy tenant_rows on queue using (tenant_id + 0 = (select current_tenant()));
alter table runs enable row level security;
create policy tenant_rows on runs using (tenant_id + 0 = (select current_tenant()));
alter table timers enable row level security;
create policy tenant_rows on timers using (tenant_id + 0 = (select current_tenant()));

-- These rows belong to a tenant through another row, which is found by its key: `offset 0` keeps the planner from
-- building a hash of all rows of the tenant.
alter table job_revisions enable row level security;
create policy tenant_rows on job_revisions using (exists (select 1 from jobs j
  where j.job_id = job_revisions.job_id offset 0));
alter table gaps enable row level security;
create policy tenant_rows on gaps using (exists (select 1 from jobs j where j.job_id = gaps.job_id offset 0));
alter table flow_nodes enable row level security;
create policy tenant_rows on flow_nodes using (exists (select 1 from flows f
  where f.flow_id = flow_nodes.flow_id offset 0));
alter table graph_nodes enable row level security;
create policy tenant_rows on graph_nodes using (exists (select 1 from graphs g
  where g.graph_id = graph_nodes.graph_id offset 0));
alter table graph_edges enable row level security;
create policy tenant_rows on graph_edges using (exists (select 1 from graphs g
  where g.graph_id = graph_edges.graph_id offset 0));
alter table signals enable row level security;
create policy tenant_rows on signals using (exists (select 1 from flows f where f.flow_id = signals.flow_id offset 0));
alter table days_off enable row level security;
create policy tenant_rows on days_off using (exists (select 1 from calendars c
  where c.digest = days_off.digest offset 0));
alter table logs enable row level security;
create policy tenant_rows on logs using (exists (
  select 1 from runs r where r.job_id = logs.job_id and r.scheduled_for = logs.scheduled_for
    and r.slot = logs.slot offset 0));
