#include <string>
#include <vector>

#include "cli/commands.h"

int main(int argc, char** argv) {
  return muster::RunMuster(std::vector<std::string>(argv + 1, argv + argc));
}
