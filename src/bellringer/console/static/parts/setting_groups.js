// The settings of the server in groups, each with what it does. A test compares the names with those of the server.

export const GROUPS = {
  "Database and dispatch": {
    dsn: "Address of the database.",
    direct_dsn: "Address of PostgreSQL itself, if dsn is that of PgBouncer.",
    read_dsn: "Address of a replica that serves lists and history.",
    pool_size: "Maximum number of database connections; derived from the database if not set.",
    dispatch: "What hands runs to workers: PostgreSQL or Kafka.",
    coordination: "What distributes shards among schedulers: PostgreSQL, a leader, or etcd.",
    cache: "Redis that API processes share as their cache; each has its own if not set.",
    time_index: "Where schedulers keep upcoming times: in the process or in Redis.",
  },
  "Server and addresses": {
    host: "Address that the API listens on.",
    port: "Port of the API.",
    metrics_host: "Address of the metrics port; that of host if not set.",
    metrics_port: "Port for metrics and health checks without a key.",
    url: "Address of the server, for the command line and for links.",
    public_url: "Address of the console as users see it, for links in messages.",
    docs_site: "Folder of the documentation shown at /guide.",
    trusted_proxies: "Proxies whose X-Forwarded headers are used.",
    connections_per_address: "Maximum number of open connections from one address.",
    name: "Name of this process in lists; host and process id if not set.",
    region: "Region of this node; it prefers shards of its region.",
  },
  Scheduling: {
    lead: "How long before its time a run may be inserted into the queue.",
    lease: "How long a scheduler may be silent before another one takes over its shards.",
    misfire_grace: "Occurrences that are later than this count as missed.",
    unknown_tasks: "What the API does with tasks that no worker knows.",
    idempotency_keys: "How many responses are stored for repeated requests, per tenant.",
  },
  Workers: {
    grace: "How long running handlers may continue when a worker stops.",
    block_limit: "How long a coroutine may block the event loop before it fails.",
    http_slots: "Maximum number of concurrent HTTP calls per server.",
    isolated_dsn: "Whether isolated handlers get the address of the database, which they need to send runs.",
    isolated_sharing: "Whether a child process may serve several tenants in sequence.",
    isolated_memory: "Memory limit of a child process in MiB; 0 is no limit.",
    capture_output: "Whether the output of handlers is stored with their run.",
    capture_level: "Lowest level of the handlers' log lines that are stored.",
    echo_output: "Whether stored output is also written to the worker's own log.",
  },
  Retention: {
    retention: "How long runs, attempts, logs and events are kept.",
    dead_retention: "How long dead letters are kept.",
    audit_retention: "How long the audit log is kept.",
    job_retention: "How long deleted and completed jobs are kept.",
    archive: "Where old runs are stored before they are deleted; nowhere if not set.",
  },
  Logging: {
    log: "Format of the log.",
    log_level: "Lowest level of the log.",
    log_attempts: "Whether each successful attempt is logged at level info.",
    tracing: "Whether OpenTelemetry spans are sent.",
  },
  "Access and secrets": {
    auth: "Whether requests from this machine need a key.",
    root_key: "Administrator key for the first login.",
    key: "API key that the command line sends.",
    jwt_issuer: "Accepted issuer of tokens.",
    jwt_audience: "Accepted audience of tokens.",
    jwt_secret: "Shared secret of HS256 tokens.",
    jwt_jwks: "File or URL of the public keys of RS256 and ES256 tokens.",
    jwt_tenant_claim: "Claim of a token that names the tenant.",
    jwt_role_claim: "Claim of a token that names the role.",
    secret_keys: "Keys that encrypt stored secrets, newest first.",
    secret_sources: "Where workers look up secrets.",
    payload_codec: "Code that encrypts payloads.",
    payload_keys: "Keys that encrypt payloads, newest first.",
    egress_allow: "Private networks that HTTP jobs and webhooks may call.",
  },
  "E-mail and heartbeat": {
    smtp_url: "Mail server for notifications.",
    smtp_from: "Sender of e-mails.",
    heartbeat_url: "URL that a scheduler calls regularly while the cluster is healthy.",
    heartbeat_interval: "Time between two calls of the heartbeat URL.",
  },
};

const KNOWN = new Map(Object.entries(GROUPS).flatMap(([group, settings]) => Object.entries(settings).map(([name, about]) => [name, { group, about }])));

/** What a setting does; empty for one that this console does not know. */
export const aboutSetting = (name) => KNOWN.get(name)?.about ?? "";
export const groupOf = (name) => KNOWN.get(name)?.group ?? "Other";
