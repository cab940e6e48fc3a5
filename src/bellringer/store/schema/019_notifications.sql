-- compatible from 014
-- Notifications (channels, routes, incidents, messages) and check-ins of jobs that run elsewhere.
-- See docs/decisions/029-notifications.md.
set local search_path to bellringer;

-- Where notifications go: a chat, a pager, a mailbox or a webhook.
create table notification_channels (
  channel_id bigint generated always as identity primary key,
  tenant_id  integer not null references tenants,
  name       text not null,
  kind       text not null check (kind in ('slack', 'pagerduty', 'teams', 'email', 'webhook')),
  settings   jsonb not null default '{}',       -- not secret: recipients, the shown URL
  secret_id  text,                              -- in secrets: the URL, or the routing key; null for e-mail
  enabled    boolean not null default true,
  created_at timestamptz not null,
  changed_at timestamptz not null,
  changed_by text not null,
  unique (tenant_id, name)
);

-- Empty lists match everything, except `tenants`: empty means the tenant of the route, '*' all tenants.
create table notification_routes (
  route_id     bigint generated always as identity primary key,
  tenant_id    integer not null references tenants,
  name         text not null,
  channel_id   bigint not null references notification_channels,
  enabled      boolean not null default true,
  tenants      text[] not null default '{}',
  kinds        text[] not null default '{}',
  severity     text not null default 'warning' check (severity in ('info', 'warning', 'critical')),  -- the lowest
  jobs         text[] not null default '{}',    -- patterns of names, such as billing-*
  tags         text[] not null default '{}',
  owners       text[] not null default '{}',
  group_by     text not null default 'job' check (group_by in ('job', 'task', 'owner', 'tenant', 'route')),
  wait         interval not null,               -- before the first message of an incident
  min_interval interval not null,               -- between two messages of an incident
  repeat_after interval,                        -- while nothing new happens; null: never
  quiet        jsonb,                           -- from, to, tz, days, critical
  recoveries   boolean not null default true,
  active_since timestamptz not null,            -- earlier events are not sent
  created_at   timestamptz not null,
  changed_at   timestamptz not null,
  changed_by   text not null,
  unique (tenant_id, name)
);
create index notification_routes_of_channel on notification_routes (channel_id);

-- Troubles of one group of a route. Each opening is a new row.
create table notification_incidents (
  incident_id uuid primary key,
  tenant_id   integer not null,                 -- of the route
  route_id    bigint not null references notification_routes on delete cascade,
  group_key   text not null,
  opened_at   timestamptz not null,
  resolved_at timestamptz,
  last_at     timestamptz not null,             -- of the newest event
  severity    text not null,
  count       bigint not null,                  -- events since it opened
  subjects    jsonb not null,                   -- by subject: what is known about each job, task or check-in in trouble
  more        integer not null default 0,       -- subjects that are only counted
  recovered   jsonb not null default '[]',      -- the last subjects that recovered
  unsent      bigint not null default 0,        -- events since the last message
  sent        integer not null default 0,       -- messages
  sent_at     timestamptz,                      -- of the last message
  next_at     timestamptz,                      -- when the next message is due; null: not before something happens
  held        boolean not null default false    -- quiet hours have delayed the next message
);
create unique index notification_incidents_open on notification_incidents (route_id, group_key)
  where resolved_at is null;
create index notification_incidents_group on notification_incidents (route_id, group_key, incident_id);
create index notification_incidents_due on notification_incidents (next_at) where next_at is not null;
create index notification_incidents_subjects on notification_incidents using gin (subjects) where resolved_at is null;
create index notification_incidents_newest on notification_incidents (tenant_id, incident_id);
create index notification_incidents_old on notification_incidents (resolved_at) where resolved_at is not null;

-- Messages: those without a run are still to be sent.
create table notifications (
  notification_id bigint generated always as identity primary key,
  tenant_id       integer not null,
  channel_id      bigint not null references notification_channels on delete cascade,
  route_id        bigint references notification_routes on delete set null,   -- null: a test
  incident_ids    uuid[] not null default '{}',
  reason          text not null check (reason in ('opened', 'updated', 'repeated', 'resolved', 'digest', 'test')),
  message         jsonb not null,
  made_at         timestamptz not null,
  job_id          uuid,                         -- the key of the run that delivers it
  scheduled_for   timestamptz,
  slot            bigint
);
create index notifications_unsent on notifications (notification_id) where job_id is null;
create index notifications_newest on notifications (tenant_id, notification_id);
create index notifications_of_incident on notifications using gin (incident_ids);
create index notifications_of_route on notifications (route_id);
create index notifications_of_channel on notifications (channel_id);
create index notifications_old on notifications (made_at);

-- The position up to which events were read. Its lock allows one pass at a time.
create table notification_position (
  only_row boolean primary key default true check (only_row),
  tx       xid8 not null default commit_position(),
  event_id bigint not null default 9223372036854775807,
  moved_at timestamptz not null default '-infinity'
);
insert into notification_position default values;

-- Check-ins: jobs that run elsewhere and report by calling a URL. deadline_at: when the check-in is down unless a ping
-- arrives; null before the first ping and while it is down or paused.
create table checkins (
  checkin_id  uuid primary key,
  tenant_id   integer not null references tenants,
  name        text not null,
  description text not null default '',
  schedule    jsonb not null,                   -- a schedule document
  grace       interval not null,
  owner       text not null default 'api',
  tags        text[] not null default '{}',
  token_hash  bytea not null unique,            -- SHA-256 of the token, which is shown once
  state       text not null default 'new' check (state in ('new', 'up', 'down')),
  paused_at   timestamptz,
  due_at      timestamptz,                      -- when the next ping is expected
  deadline_at timestamptz,
  started_at  timestamptz,                      -- of a ping /start without an end
  pinged_at   timestamptz,                      -- of the last end, success or failure
  succeeded_at timestamptz,
  down_since  timestamptz,
  duration    interval,                         -- between the last start and its end
  pings       bigint not null default 0,
  created_at  timestamptz not null,
  changed_at  timestamptz not null,
  changed_by  text not null,
  unique (tenant_id, name)
);
create index checkins_deadline on checkins (deadline_at) where deadline_at is not null;

-- The calls that check-ins received.
create table checkin_pings (
  ping_id    bigint generated always as identity primary key,
  tenant_id  integer not null,
  checkin_id uuid not null references checkins on delete cascade,
  at         timestamptz not null,
  kind       text not null check (kind in ('start', 'success', 'fail')),
  exit_code  smallint,
  duration   interval,
  origin     text,                              -- the address of the caller
  body       text                               -- the beginning
);
create index checkin_pings_newest on checkin_pings (checkin_id, ping_id);
create index checkin_pings_old on checkin_pings (at);

alter table notification_channels enable row level security;
create policy tenant_rows on notification_channels using (tenant_id = (select current_tenant()));
alter table notification_routes enable row level security;
create policy tenant_rows on notification_routes using (tenant_id = (select current_tenant()));
alter table notification_incidents enable row level security;
create policy tenant_rows on notification_incidents using (tenant_id = (select current_tenant()));
alter table notifications enable row level security;
create policy tenant_rows on notifications using (tenant_id = (select current_tenant()));
alter table checkins enable row level security;
create policy tenant_rows on checkins using (tenant_id = (select current_tenant()));
alter table checkin_pings enable row level security;
create policy tenant_rows on checkin_pings using (tenant_id = (select current_tenant()));

create trigger audited after insert or update or delete on notification_channels
  for each row execute function audited('notification_channel', 'name', '');
create trigger audited after insert or update or delete on notification_routes
  for each row execute function audited('notification_route', 'name', '');
create trigger audited after insert or update or delete on checkins
  for each row execute function audited('checkin', 'name',
  'token_hash,state,due_at,deadline_at,started_at,pinged_at,succeeded_at,down_since,duration,pings');
