// Every path of the API that this page asks for.  A test reads this list and asks the server for each of them.

export const PATHS = {
  whoami: "GET /api/whoami",
  overview: "GET /api/overview",
  events: "GET /api/events",
  queues: "GET /api/queues",
  queue: "GET /api/queues/{vhost}/{name}",
  explain: "GET /api/queues/{vhost}/{name}/explain",
  peek: "GET /api/queues/{vhost}/{name}/peek",
  purge: "DELETE /api/queues/{vhost}/{name}/contents",
  pause: "POST /api/queues/{vhost}/{name}/pause",
  resume: "POST /api/queues/{vhost}/{name}/resume",
  redrive: "POST /api/queues/{vhost}/{name}/redrive",
  move: "POST /api/queues/{vhost}/{name}/move",
  connections: "GET /api/connections",
  closeConnection: "DELETE /api/connections/{name}",
  topics: "GET /api/topics",
  views: "GET /api/views",
  streams: "GET /api/streams",
  pipelines: "GET /api/pipelines",
  log: "GET /api/log",
  query: "POST /api/query",
};
