// PyTorch's TCPStore from C++ (LibTorch):
//   bench-control-tcpstore server           prints "listening on HOST:PORT", serves until it is
//   killed bench-control-tcpstore clients PORT N   reads "register", "barriers K", "releases K";
//   answers each with a line of JSON
// Its calls block, so each client has a thread of its own, as each has a process of its own in use.
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace {

using c10d::TCPStore;
using c10d::TCPStoreOptions;

constexpr auto kLimit = std::chrono::seconds(60);

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

TCPStoreOptions Options(int port, bool server) {
  TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = server;
  options.waitWorkers = false;
  options.timeout = kLimit;
  options.useLibUV = true;
  return options;
}

int Serve() {
  TCPStore store("127.0.0.1", Options(0, true));
  std::cout << "listening on 127.0.0.1:" << store.getPort() << std::endl;
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// N threads that run the same work, released by one event.
class Crew {
 public:
  using Work = void (*)(Crew* crew, int client);

  Crew(int port, int size) : port_(port), stores_(size), done_(size) {}

  // Seconds from the release to the end of each client's work, sorted. `last_alone`: the last
  // client is released `settle` after the others, and the time starts with it.
  std::vector<double> Run(Work work, bool last_alone) {
    const int size = static_cast<int>(stores_.size());
    released_ = last_released_ = false;
    ready_ = 0;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    std::vector<pthread_t> threads(size);
    std::vector<Task> tasks(size);
    for (int i = 0; i < size; ++i) {
      tasks[i] = {this, work, i, last_alone && i == size - 1};
      if (pthread_create(&threads[i], &attributes, Start, &tasks[i]) != 0) {
        std::fprintf(stderr, "no more than %d threads can be made\n", i);
        std::_Exit(2);
      }
    }
    while (ready_ < size) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    double start = Release(&released_);
    if (last_alone) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500 + size / 8));
      start = Release(&last_released_);
    }
    for (const pthread_t thread : threads) pthread_join(thread, nullptr);
    std::vector<double> seconds;
    for (const double end : done_) seconds.push_back(end - start);
    std::sort(seconds.begin(), seconds.end());
    return seconds;
  }

  static void Connect(Crew* crew, int client) {
    crew->stores_[client] =
        std::make_unique<TCPStore>("127.0.0.1", Options(crew->port_, /*server=*/false));
  }

  static void Barrier(Crew* crew, int client) {
    TCPStore& store = *crew->stores_[client];
    const std::string name = "barrier" + std::to_string(crew->round);
    const auto size = static_cast<int64_t>(crew->stores_.size());
    if (store.add(name, 1) == size) store.set(name + "/go", std::vector<uint8_t>{1});
    store.wait({name + "/go"}, std::chrono::duration_cast<std::chrono::milliseconds>(kLimit));
  }

  int round = 0;

 private:
  struct Task {
    Crew* crew;
    Work work;
    int client;
    bool alone;
  };

  static void* Start(void* argument) {
    const Task& task = *static_cast<Task*>(argument);
    Crew& crew = *task.crew;
    {
      std::unique_lock<std::mutex> lock(crew.mu_);
      ++crew.ready_;
      bool& gate = task.alone ? crew.last_released_ : crew.released_;
      crew.released_event_.wait(lock, [&] { return gate; });
    }
    try {
      task.work(&crew, task.client);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "client %d: %s\n", task.client, e.what());
      std::_Exit(1);
    }
    crew.done_[task.client] = Now();
    return nullptr;
  }

  double Release(bool* gate) {
    std::lock_guard<std::mutex> lock(mu_);
    *gate = true;
    const double now = Now();
    released_event_.notify_all();
    return now;
  }

  const int port_;
  std::vector<std::unique_ptr<TCPStore>> stores_;
  std::vector<double> done_;
  std::mutex mu_;
  std::condition_variable released_event_;
  bool released_ = false, last_released_ = false;
  std::atomic<int> ready_ = 0;
};

std::string Summary(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::ostringstream out;
  const auto at = [&](double part) {
    return values[static_cast<size_t>(part * (values.size() - 1))];
  };
  out << "{\"p50\":" << at(0.5) << ",\"p99\":" << at(0.99) << ",\"max\":" << values.back() << "}";
  return out.str();
}

int Drive(int port, int size) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  Crew crew(port, size);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    int count = 1;
    words >> command >> count;
    if (command == "register") {
      std::cout << Summary(crew.Run(Crew::Connect, false)) << std::endl;
      continue;
    }
    std::vector<double> halves, alls;
    for (int i = 0; i < count; ++i) {
      ++crew.round;
      const std::vector<double> out = crew.Run(Crew::Barrier, command == "releases");
      halves.push_back(out[out.size() / 2]);
      alls.push_back(out.back());
    }
    std::cout << "{\"half\":" << Summary(halves) << ",\"all\":" << Summary(alls) << "}"
              << std::endl;
  }
  std::_Exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "server") return Serve();
  if (argc == 4 && std::string(argv[1]) == "clients") {
    return Drive(std::atoi(argv[2]), std::atoi(argv[3]));
  }
  std::cerr << "usage: bench-control-tcpstore server | clients PORT N\n";
  return 2;
}
