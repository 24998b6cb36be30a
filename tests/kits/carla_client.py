"""CARLA's client library at work: `carla_client.py PORT SCENARIO` prints what a scenario found, as JSON.

Runs without the rest of the repository.
"""

import json
import os
import queue
import sys
import time

import carla

DT_S = 0.05
TIMEOUT_S = 1.0
CAR = "vehicle.tesla.model3"
Location, Vector, Transform, Control = carla.Location, carla.Vector3D, carla.Transform, carla.VehicleControl
command = carla.command


def connect(port, synchronous=True):
    client = carla.Client("127.0.0.1", port)
    client.set_timeout(10.0)
    world = client.get_world()
    settings = world.get_settings()
    settings.synchronous_mode, settings.fixed_delta_seconds = synchronous, DT_S
    world.apply_settings(settings)
    return client, world


def plain(vector):
    return [vector.x, vector.y, vector.z]


def pose(transform):
    return [*plain(transform.location), transform.rotation.yaw]


def spawn(world, name=CAR, at=0, parent=None, **attributes):
    blueprint = world.get_blueprint_library().find(name)
    for key, value in attributes.items():
        blueprint.set_attribute(key, value)
    place = world.get_map().get_spawn_points()[at] if isinstance(at, int) else at
    return world.spawn_actor(blueprint, place, attach_to=parent)


def tick_until_heard(world, heard):
    for _ in range(300):
        if not heard.empty():
            return
        world.tick()
        time.sleep(0.002)
    raise TimeoutError


def load_town(client):
    """A new episode; synchronous clients see nothing of it before its first tick."""
    world = client.load_world("town", False)
    world.tick()
    return world


def refusal(call, *arguments):
    started = time.monotonic()
    try:
        call(*arguments)
    except RuntimeError as error:
        return {"error": str(error), "seconds": time.monotonic() - started}
    return {"error": None, "seconds": time.monotonic() - started}


def look(port):
    client, world = connect(port)
    library = world.get_blueprint_library()
    car = library.find(CAR)
    town = world.get_map()
    lights = {light.get_opendrive_id(): light for light in world.get_actors().filter("traffic.traffic_light")}
    groups = {
        name: [other.get_opendrive_id() for other in light.get_group_traffic_lights()] for name, light in lights.items()
    }
    return {
        "version": client.get_server_version(),
        "maps": client.get_available_maps(),
        "map": town.name,
        "spawn_points": [pose(point) for point in town.get_spawn_points()],
        "on_lanes": [town.get_waypoint(point.location, False) is not None for point in town.get_spawn_points()],
        "wheels": {b.id: int(b.get_attribute("number_of_wheels")) for b in library.filter("vehicle.*")},
        "walkers": len(library.filter("walker.pedestrian.*")),
        "roles": car.get_attribute("role_name").recommended_values,
        "signs": [actor.type_id for actor in world.get_actors().filter("traffic.stop")],
        "groups": {name: sorted(group) for name, group in groups.items()},
        "found": world.get_traffic_light_from_opendrive_id("L1").id == lights["L1"].id,
        "states": {name: str(light.state) for name, light in lights.items()},
        "stops": {name: [pose(w.transform) for w in light.get_stop_waypoints()] for name, light in lights.items()},
        "settings": [world.get_settings().synchronous_mode, world.get_settings().fixed_delta_seconds],
        "weather": _weather(world),
    }


def _weather(world):
    world.set_weather(carla.WeatherParameters.HardRainNoon)
    world.tick()
    return world.get_weather() == carla.WeatherParameters.HardRainNoon


def drive(port):
    """A drive that is the same each time."""
    client, _ = connect(port)
    world = load_town(client)
    car, walker = spawn(world, role_name="hero"), spawn(world, "walker.pedestrian.0001", Transform(Location(5, 5, 1)))
    blocked = world.try_spawn_actor(world.get_blueprint_library().find(CAR), world.get_map().get_spawn_points()[0])
    walker.apply_control(carla.WalkerControl(Vector(0, 1, 0), 1.5, False))
    path, frames = [], []
    for step in range(80):
        car.apply_control(Control(throttle=0.7, steer=0.05 if step > 40 else 0.0, brake=1.0 if step > 70 else 0.0))
        frames.append(world.tick())
        snapshot = world.get_snapshot()
        assert snapshot.frame == frames[-1]
        found = snapshot.find(car.id)
        path.append([*pose(found.get_transform()), *plain(found.get_velocity()), *plain(found.get_acceleration())])
    control = car.get_control()
    result = {
        "blocked": blocked is None,
        "frames": [frame - frames[0] for frame in frames],
        "path": path,
        "dt": snapshot.delta_seconds,
        "walker": [*pose(walker.get_transform()), walker.get_velocity().y],
        "control": [control.throttle, control.steer, control.brake, control.hand_brake, control.reverse],
        "box": plain(car.bounding_box.extent),
        "limit": car.get_speed_limit(),
        "role": car.attributes["role_name"],
    }
    car.set_transform(world.get_map().get_spawn_points()[3])
    car.set_target_velocity(Vector())
    world.tick()
    result["moved"] = pose(car.get_transform())[:2] == pose(world.get_map().get_spawn_points()[3])[:2]
    result["destroyed"] = [car.destroy(), walker.destroy()]
    world.tick()
    result["left"] = len(world.get_actors().filter("vehicle.*"))
    return result


def batches(port):
    client, _ = connect(port)
    world = load_town(client)
    points = world.get_map().get_spawn_points()
    library = world.get_blueprint_library()
    car, child = library.find(CAR), library.find("walker.pedestrian.0009")
    future = command.FutureActor
    push = command.ApplyVehicleControl(future, Control(throttle=1.0))
    made = client.apply_batch_sync(
        [
            command.SpawnActor(car, points[0]).then(push),
            command.SpawnActor(car, points[0]),
            command.SpawnActor(child, Transform(Location(8, 8, 1))),
            command.SpawnActor(library.find("static.prop.trafficcone01"), Transform(Location(-8, 8, 0))),
        ],
        True,
    )
    ids = [answer.actor_id for answer in made if not answer.error]
    client.apply_batch(
        [
            command.ApplyWalkerControl(ids[1], carla.WalkerControl(Vector(1, 0, 0), 2.0)),
            command.ApplyTransform(ids[2], Transform(Location(-9, 9, 0))),
            command.SetVehicleLightState(ids[0], carla.VehicleLightState.Brake),
        ]
    )
    for _ in range(10):
        world.tick()
    actors = {actor.id: actor for actor in world.get_actors(ids)}
    result = {
        "errors": [answer.error for answer in made],
        "car": actors[ids[0]].get_velocity().length(),
        "walker": actors[ids[1]].get_velocity().x,
        "prop": pose(actors[ids[2]].get_transform())[:2],
        "brake": actors[ids[0]].get_light_state() == carla.VehicleLightState.Brake,
    }
    client.apply_batch_sync([command.SetSimulatePhysics(ids[0], False)], True)
    before = pose(actors[ids[0]].get_transform())
    world.tick()
    result["frozen"] = before == pose(actors[ids[0]].get_transform())
    gone = client.apply_batch_sync([command.DestroyActor(i) for i in (*ids, 9999)], True)
    result["destroyed"] = [answer.error for answer in gone]
    return result


def sensors(port):
    client, _ = connect(port)
    world = load_town(client)
    car, other = spawn(world), spawn(world, "vehicle.audi.tt", at=2)
    size = {"image_size_x": "64", "image_size_y": "48"}
    front = Transform(Location(x=1.5, z=2.0))
    heard, kept = {}, []
    for name, given in {
        "camera.rgb": size,
        "camera.semantic_segmentation": size,
        "other.imu": {},
        "other.collision": {},
        "other.lane_invasion": {},
    }.items():
        heard[name] = queue.Queue()
        kept.append(spawn(world, f"sensor.{name}", front, car, **given))  # listens as long as it is kept
        kept[-1].listen(heard[name].put)
    for name in ("camera.rgb", "camera.semantic_segmentation", "other.imu"):  # until the streams are connected
        tick_until_heard(world, heard[name])
    for waiting in heard.values():
        while not waiting.empty():
            waiting.get()
    frames, images, labels, turned = [], [], [], []
    car.apply_control(Control(throttle=1.0))
    for _ in range(5):
        frames.append(world.tick())
        images.append(heard["camera.rgb"].get(timeout=2.0))
        labels.append(heard["camera.semantic_segmentation"].get(timeout=2.0))
        turned.append(heard["other.imu"].get(timeout=2.0))
    tick_until_heard(world, heard["other.collision"])
    hit = heard["other.collision"].get(timeout=2.0)
    car.apply_control(Control(throttle=1.0, reverse=True, steer=-1.0))
    tick_until_heard(world, heard["other.lane_invasion"])
    line = heard["other.lane_invasion"].get(timeout=2.0)
    raw = bytes(labels[-1].raw_data)
    return {
        "frames": frames,
        "images": [image.frame for image in images][-5:],
        "sizes": [images[-1].width, images[-1].height, len(images[-1].raw_data), images[-1].fov],
        "tags": sorted(set(raw[2::4])),
        "imu": [plain(turned[-1].accelerometer), turned[-1].frame],
        "hit": [hit.actor.id == car.id, hit.other_actor.id == other.id, hit.normal_impulse.x],
        "marks": [str(mark.type) for mark in line.crossed_lane_markings],
    }


def lights(port):
    client, _ = connect(port)
    world = load_town(client)
    found = {light.get_opendrive_id(): light for light in world.get_actors().filter("traffic.traffic_light")}
    seen = []
    for _ in range(int(17 / DT_S)):
        world.tick()
        states = [str(found[name].state)[0] for name in ("L0", "L1", "L2")]
        if not seen or seen[-1][0] != states:
            seen.append([states, 1])
        else:
            seen[-1][1] += 1
    one = found["L0"]
    one.set_state(carla.TrafficLightState.Green)
    one.freeze(True)
    one.set_green_time(4.0)
    for _ in range(20):
        world.tick()
    result = {"seen": seen, "frozen": one.is_frozen(), "state": str(one.state), "green": one.get_green_time()}
    area = one.get_stop_waypoints()[0]
    car = spawn(world, at=Transform(area.transform.location + Location(z=0.5), area.transform.rotation))
    world.tick()
    at = car.get_traffic_light()
    ground = world.ground_projection(Location(30.0, -1.75, 2.0), 5.0)
    result |= {"limit": car.get_speed_limit(), "ground": [ground.location.z, str(ground.label)]}
    waypoint = world.get_map().get_waypoint(Location(0.0, -1.75, 0.0))
    inside = world.get_traffic_lights_in_junction(waypoint.junction_id)
    result["inside"] = sorted(light.get_opendrive_id() for light in inside)
    return {**result, "at": [car.is_at_traffic_light(), at.id == one.id, str(car.get_traffic_light_state())]}


def maps(port):
    client, _ = connect(port)
    world = load_town(client)
    spawn(world, at=1)
    world.tick()
    first, counted = world.id, len(world.get_actors())
    second = client.load_world("Second", False)
    second.tick()
    kept = second.get_settings().synchronous_mode
    third = client.reload_world()
    text = second.get_map().to_opendrive()
    missing = refusal(client.load_world, "Nowhere")
    made = client.generate_opendrive_world(text)
    return {
        "episodes": [world.id - first for world in (second, third, made)],
        "actors": [counted, len(second.get_actors()), len(third.get_actors())],
        "synchronous": [kept, made.get_settings().synchronous_mode],
        "missing": missing["error"],
        "made": made.get_map().name,
    }


def autopilot(port):
    client, _ = connect(port)
    world = load_town(client)
    manager = client.get_trafficmanager(port + 100)
    manager.set_synchronous_mode(True)
    manager.set_random_device_seed(3)
    cars = [spawn(world, at=at) for at in (0, 2, 4)]  # towards the crossing
    for car in cars:
        car.set_autopilot(True, manager.get_port())
    points = world.get_map().get_spawn_points()
    begins = [pose(points[at]) for at in (0, 2, 4)]
    for _ in range(80):
        world.tick()
    ends = [pose(car.get_transform()) for car in cars]
    manager.shut_down()
    return {"begins": begins, "ends": ends}


def flowing(port):
    _, world = connect(port, synchronous=False)
    frames = [world.wait_for_tick(5.0).frame for _ in range(3)]
    return {"frames": frames}


# faults


def patient_tick(port):
    """Errors of three ticks, and the frame that is seen after each."""
    client, world = connect(port)
    first = world.get_snapshot().frame
    found = []
    client.set_timeout(TIMEOUT_S)
    for _ in range(3):
        found.append({**refusal(world.tick, TIMEOUT_S), "frame": world.get_snapshot().frame - first})
    return found


def load(port):
    client, _ = connect(port)
    client.set_timeout(TIMEOUT_S)
    return refusal(client.load_world, "Second")


def told(port):
    client, world = connect(port)
    return {"version": client.get_server_version(), "map": world.get_map().name}


def spawns(port):
    _, world = connect(port)
    return [refusal(spawn, world, name, at)["error"] for at, name in ((0, CAR), (2, CAR), (5, "vehicle.audi.tt"))]


def camera(port):
    """Frames of a camera in the order in which they come, from the first frame on."""
    _, world = connect(port)
    car = spawn(world)
    sensor = spawn(world, "sensor.camera.rgb", Transform(), car, image_size_x="8", image_size_y="8")
    heard = queue.Queue()
    sensor.listen(heard.put)
    time.sleep(0.2)  # until the stream is connected
    first = world.tick()
    for _ in range(5):
        refusal(world.tick, TIMEOUT_S)
    time.sleep(0.2)
    return [heard.get().frame - first for _ in range(heard.qsize())]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[2]](int(sys.argv[1]))), flush=True)
    os._exit(0)  # the client's own threads may end the process in a worse way
