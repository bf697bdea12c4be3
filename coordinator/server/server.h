// The coordinator as one object: engine, gRPC services with health checking and reflection, HTTP
// page. Thread-safe after Start.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/token.h"
#include "coordinator/engine/engine.h"
#include "coordinator/server/limits.h"

namespace muster {

struct ServerOptions {
  std::string listen = "127.0.0.1:7700";  // HOST:PORT; port 0: any free one
  std::string http;                       // HOST:PORT; empty: no HTTP
  Token token;                            // that every call must bring; empty: none
  ServerLimits limits;
  EngineOptions engine;
  // What outlives the server; it outlives the server object, too. nullptr: nothing does.
  Journal* journal = nullptr;
  std::string trace_folder;    // where traces of steps are kept; empty: nowhere
  std::string coordinator_id;  // eight bytes that stay with the journal; empty: drawn
};

class CoordinatorServer {
 public:
  // INVALID_ARGUMENT for an address that is not HOST:PORT; FAILED_PRECONDITION for one that other
  // machines could reach, without a token; ALREADY_EXISTS when the port is taken, with its holder;
  // what the journal says when it cannot be read. `clock` outlives the server.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(const ServerOptions& options,
                                                                  Clock* clock);
  ~CoordinatorServer();  // stops

  // HOST:PORT in use.
  const std::string& address() const;
  const std::string& http_address() const;  // empty: none
  // What the journal held.
  const Restored& restored() const;

  // Calls `read` with the core at its turn (Engine::Read): for whoever checks what it holds.
  absl::Status Inspect(Engine::ReadFn read);

  // Ends every stream and waiting call with UNAVAILABLE, then stops; within 2 s.
  void Stop();

 private:
  struct Impl;
  explicit CoordinatorServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
